#!/usr/bin/env python3
"""Takes apart the machine code that libraries ship for this GPU, loads whole modules and pieces of them with the driver, and
compares: does a piece load, is it described as the whole is, do the notes beside the code say what the driver says, and do
kernels of `code.cu` give the same results. Counts, failures by reason and times, as JSON.

    python3 benches/gpu/machine_code.py [--bin DIR] [--out FILE] [--seconds N] [--threads N] [LIBRARY ...]
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("code.cu")
PACKAGES = ["torch", "nvidia", "cupy", "cupy_backends", "jax_plugins"]
# Libraries for the host alone, and such that are looked at in their package.
SMALLEST = 1 << 20
PRINTED = "said 4 text"


def folders(package):
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in spec.submodule_search_locations or []] if spec else []


def libraries():
    """Every shared library of the packages, smallest first: what time is left goes to the largest."""
    found = {}
    for folder in (folder for package in PACKAGES for folder in folders(package)):
        for path in folder.rglob("*.so*"):
            status = path.stat()
            if path.is_file() and status.st_size >= SMALLEST:
                found[(status.st_dev, status.st_ino)] = path.resolve()
    return sorted(found.values(), key=lambda path: path.stat().st_size)


def compiler():
    """nvcc on the path, or in a package."""
    packaged = [path for folder in folders("nvidia") for path in folder.glob("*/bin/nvcc")]
    found = shutil.which("nvcc") or (str(packaged[0]) if packaged else None)
    if found is None:
        raise FileNotFoundError("nvcc was not found; put it on the path or install the package nvidia-cuda-nvcc")
    return found


def measure(binary, work, seconds, threads, only=()):
    """The report of the example program `code` of the NVIDIA device."""
    cubin, linked, out = work / "code.cubin", work / "linked.cubin", work / "code.json"
    architecture = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    nvcc, arch = compiler(), f"-arch=sm_{architecture.replace('.', '')}"
    subprocess.run([nvcc, arch, "-cubin", "-o", cubin, SOURCE], check=True)
    subprocess.run([nvcc, arch, "-rdc=true", "-DLINKED", "-cubin", "-o", work / "linkable.cubin", SOURCE], check=True)
    subprocess.run([Path(nvcc).with_name("nvlink"), arch, "-o", linked, work / "linkable.cubin"], check=True)
    command = [binary, "--seconds", str(seconds), "--threads", str(threads), "--run", cubin, "--run", linked, "--out", out]
    done = subprocess.run([*command, *(only or libraries())], stdout=subprocess.PIPE, text=True, timeout=seconds + 120)
    if done.returncode != 0:
        raise RuntimeError(f"{binary} ended with {done.returncode}")
    report = json.loads(out.read_text())
    # Whole and in each form of piece, the kernel that prints does so.
    report["lines_printed"] = done.stdout.splitlines().count(PRINTED)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=ROOT / "target/release/examples", type=Path)
    parser.add_argument("--out", default="code.json", type=Path)
    parser.add_argument("--seconds", type=int, default=100, help="begin no further module after so long")
    parser.add_argument("--threads", type=int, default=1, help="more than one makes times of loads those of a driver that others wait for")
    parser.add_argument("libraries", nargs="*", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rekindle-code-") as work:
        report = measure(options.bin / "code", Path(work), options.seconds, options.threads, options.libraries)
    options.out.write_text(json.dumps(report, indent=1))
    json.dump({"lines_printed": report["lines_printed"], **report["all"]["counts"], **report["all"]["sums"]}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
