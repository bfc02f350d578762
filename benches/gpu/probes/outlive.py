"""What a fault does to programs that share its context: three programs, one of which faults; the others are at rest, and are
to give the same answers afterwards, from another context.

    python benches/gpu/probes/outlive.py [--binaries DIR] [--gpu nvidia] [--out FILE] [--rounds 3]

Prints, for each round, how long after the fault each of the others answered, beside its warm answers, and whether the
answer was the same to the last bit. `--gpu emulated` does so without torch. Each wait is bounded; a round takes some
seconds, and all of it, with the imports of torch, about two minutes.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from rekindle import Rekindle  # noqa: E402

LIMIT = 120
# Answers each request, a file whose name has its number, by a file with a digest.
SERVE = """
import hashlib, os, sys, time
from pathlib import Path
place, name, features = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
{work}
print("ready", flush=True)
number = 0
while True:
    number += 1
    while not (place / f"ask-{{name}}-{{number}}").exists():
        time.sleep(0.0005)
    new = place / f"new-{{name}}"
    new.write_text(answer())
    new.rename(place / f"answer-{{name}}-{{number}}")
"""
# Modules of cuBLAS and cuDNN, a graph, streams, timed events and pinned memory.
TORCH = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 58 * 58, 512)).cuda()
still = torch.randn(1 << 28, device="cuda")
batch, pinned = torch.randn(16, 3, 64, 64, device="cuda"), torch.empty(16, 512).pin_memory()
side, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.no_grad():
    with torch.cuda.stream(side):
        for _ in range(3):
            model(batch)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model(batch)
start.record()

def answer():
    graph.replay()
    pinned.copy_(captured, non_blocking=True)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    return hashlib.sha256(pinned.numpy().tobytes() + still.sum(dtype=torch.float64).cpu().numpy().tobytes()).hexdigest()
"""
PLAIN = """
sys.path.insert(0, features)
import numpy as np
from gpu import adder, download
module, n, first, second = adder()

def answer():
    module.add(n // 256, 256, first, 0.0, n)
    return hashlib.sha256(download(first, n).tobytes()).hexdigest()
"""
# Writes to an address that nothing is mapped at.
FAULT = """
import ctypes, os, sys, time
from pathlib import Path
word = Path(sys.argv[1])
cuda = ctypes.CDLL("libcuda.so.1")
context, device, module, kernel = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
done = lambda code: None if code == 0 else sys.exit(f"the driver answered {code}")
done(cuda.cuInit(0))
done(cuda.cuDeviceGet(ctypes.byref(device), 0))
done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
done(cuda.cuCtxSetCurrent(context))
text = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry fault() { .reg .b64 %a; .reg .b32 %b; mov.u64 %a, 0x40; mov.u32 %b, 1; st.global.u32 [%a], %b; ret; }\\0"
done(cuda.cuModuleLoadData(ctypes.byref(module), text))
done(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"fault"))
print("ready", flush=True)
while not word.exists():
    time.sleep(0.0005)
done(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))
print("faulted", cuda.cuCtxSynchronize(), flush=True)
time.sleep(1000)
"""


class Served:
    """A program that answers when it is asked."""

    def __init__(self, rekindle, name, work):
        self.place, self.name, self.number = rekindle.root, name, 0
        program = [sys.executable, "-c", SERVE.format(work=work), rekindle.root, name, ROOT / "tests/features"]
        rekindle("run", "-d", "--share", "probe", "--name", name, "--gpu", rekindle.gpu, "--", *program)

    def ask(self):
        """The answer, and how long it took."""
        self.number += 1
        answer, began = self.place / f"answer-{self.name}-{self.number}", time.perf_counter()
        (self.place / f"ask-{self.name}-{self.number}").touch()
        while not answer.exists():
            if time.perf_counter() - began > LIMIT:
                raise TimeoutError(f"no answer of {self.name} within {LIMIT} s")
            time.sleep(0.0005)
        return answer.read_text(), time.perf_counter() - began


def phases(rekindle, name):
    return rekindle.json("trace", name, "--svg", rekindle.root / "picture.svg")["traces"][-1]["phases"]


def one_round(rekindle, others, number):
    name, word = f"faulty-{number}", rekindle.root / f"fault-{number}"
    rekindle("run", "-d", "--share", "probe", "--name", name, "--gpu", rekindle.gpu, "--", sys.executable, "-c", FAULT, word)
    ready = rekindle.wait_lines(name, 1, LIMIT)
    assert ready == ["ready"], ready
    before = {one.name: rekindle.sandbox(one.name)["workers"] for one in others}
    together = rekindle.sandbox(name)["workers"] == before[others[0].name]
    warm = {one.name: [one.ask() for _ in range(3)] for one in others}
    # They come to rest.
    time.sleep(0.5)
    began = time.perf_counter()
    word.touch()
    told = rekindle.wait_lines(name, 2, LIMIT)
    told_s = time.perf_counter() - began
    rows = []
    for one in others:
        answer, took = one.ask()
        again, later = one.ask()
        row = rekindle.sandbox(one.name)
        moved = row["workers"] != before[one.name]
        rows.append(
            {
                "program": one.name,
                "same": {answer, again} == {warm[one.name][0][0]},
                "moved": moved,
                "problem": row["problem"],
                "warm_s": [round(took, 4) for _, took in warm[one.name]],
                "first_answer_s": round(took, 4),
                "fault_to_answer_s": round(time.perf_counter() - began, 4),
                "second_answer_s": round(later, 4),
                "trace": phases(rekindle, one.name) if moved else [],
            }
        )
    rekindle("kill", name)
    return {"round": number, "in one context": together, "told": told[1:], "told_s": round(told_s, 4), "others": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--gpu", default="nvidia")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    work = PLAIN if options.gpu.startswith("emulated") else TORCH
    with Rekindle(gpu=options.gpu, binaries=options.binaries) as rekindle:
        others = [Served(rekindle, name, work) for name in ("one", "two")]
        for one in others:
            lines = rekindle.wait_lines(one.name, 1, LIMIT)
            assert lines == ["ready"], lines
        rows = []
        for number in range(options.rounds):
            rows.append(one_round(rekindle, others, number))
            shown = [{key: value for key, value in row.items() if key != "trace"} for row in rows[-1]["others"]]
            print(json.dumps({**rows[-1], "others": shown}, indent=1), flush=True)
        print((rekindle.state / "daemon.log").read_text()[-4000:], file=sys.stderr)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["same"] and row["moved"] for one in rows for row in one["others"]) else 1


if __name__ == "__main__":
    sys.exit(main())
