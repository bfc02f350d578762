"""Kernels in CUDA C, compiled by NVRTC and by nvcc, on the emulated GPU, against NumPy on random inputs."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rekindle import ROOT, Rekindle

KERNELS = Path(__file__).parent / "kernels"
KEPT = ROOT / ".build/nvcc"
FAULTS = ("check", "trap", "wild", "misaligned")


@pytest.fixture(scope="module")
def compiled():
    """A folder with every source as PTX from nvcc, which is compiled once: processes that run tests wait for each other."""
    import nvidia

    toolkit = next(path for root in nvidia.__path__ for path in Path(root).glob("cu13"))
    compiler = (toolkit / "bin/nvcc").stat()
    options = ["-ptx", "-arch=compute_90", "-rdc=true", f"-I{toolkit / 'include'}", f"-I{toolkit / 'include/cccl'}"]
    sources = sorted(KERNELS.glob("*.cu"))
    what = repr((compiler.st_size, compiler.st_mtime_ns, options, [(source.name, source.read_bytes()) for source in sources]))
    folder = KEPT / hashlib.sha256(what.encode()).hexdigest()
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=KEPT, prefix="draft-") as draft:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            compile_all(toolkit / "bin/nvcc", options, sources, Path(draft, "ptx"))
            Path(draft, "ptx").rename(folder)
    return folder


def compile_all(nvcc, options, sources, folder):
    folder.mkdir()
    running = [subprocess.Popen([nvcc, *options, s, "-o", folder / f"{s.stem}.ptx"], stderr=subprocess.PIPE, text=True) for s in sources]
    for process in running:
        _, problem = process.communicate()
        assert process.returncode == 0, problem


def run(rekindle, program, *arguments):
    name = program.replace("_", "-")
    rekindle.run(name, sys.executable, KERNELS / f"{program}.py", *arguments)
    lines = rekindle.wait_end(name)
    assert lines[-1:] == ["ok"], "\n".join(lines)
    return lines


@pytest.mark.parametrize("program", ["arithmetic", "control", "grid", "library", "linked", "matmul", "reduce", "texture"])
@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_results_are_those_of_numpy(rekindle, compiled, compiler, program):
    run(rekindle, program, compiled if compiler == "nvcc" else rekindle.root)


def test_cuda_core(rekindle):
    run(rekindle, "core", rekindle.root)


@pytest.mark.parametrize("kernel", FAULTS)
@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_prints_and_faults(rekindle, compiled, compiler, kernel):
    lines = run(rekindle, "faults", compiled if compiler == "nvcc" else rekindle.root, "7", kernel)
    expected = [line.removeprefix("expect ") for line in lines if line.startswith("expect ")]
    printed = [line for line in lines if line.startswith("thread ")]
    assert printed == expected and len(expected) == 5


def test_prints_follow_the_programs_output(rekindle, compiled):
    """What a kernel prints goes where the program's own output goes, in order with it."""
    elsewhere = rekindle.root / "printed"
    command = f"exec {shutil.which('env')} {sys.executable} {KERNELS / 'faults.py'} {compiled} 7 trap >{elsewhere}"
    rekindle.run("redirected", "sh", "-c", command)
    assert not [line for line in rekindle.wait_end("redirected") if line.startswith("thread")]
    lines = elsewhere.read_text().splitlines()
    assert sum(line.startswith("thread ") for line in lines) == 5 and lines[-1] == "ok"


# A module whose kernel is looked up, which loads it, and a library with two that are, of which one is launched.
CODE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, compile_ptx, open_device, pack
open_device()
module = Module('__device__ int counted; extern "C" __global__ void a(int *at) { at[0] += ++counted; }')
module.function("a")
text = 'extern "C" __global__ void b() {} extern "C" __global__ void c(int n) {}'
library = call("cuLibraryLoadData", compile_ptx(text), [], [], 0, [], [], 0)
b, c = (call("cuLibraryGetKernel", library, name) for name in (b"b", b"c"))
slots, pointers = pack([1])
call("cuLaunchKernel", int(c), 1, 1, 1, 1, 1, 1, 0, 0, pointers.ctypes.data, 0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("tuning", "found"),
    [
        ("gpu.code=pieces", {"in_pieces": 2, "kernels": 3, "loaded": 2, "ordered": False}),
        ("gpu.code=whole", {"in_pieces": 0, "kernels": 0, "loaded": 0, "ordered": True}),
    ],
)
def test_inspect_counts_what_was_taken_apart_and_what_was_loaded(tuning, found):
    with Rekindle(REKINDLE_TUNING=tuning) as rekindle:
        rekindle.run("code", sys.executable, "-c", CODE, Path(__file__).parent / "features")
        rekindle.wait_lines("code", 1)
        rekindle("checkpoint", "code", "--to", "code", "--stop")
        (code,) = rekindle.json("inspect", "code")["code"]
        assert code == {"modules": 2, "whole": {}, **found}
