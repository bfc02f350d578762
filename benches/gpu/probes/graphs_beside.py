#!/usr/bin/env python3
"""What a program notices of another one beside it that is restored with many instances of CUDA graphs, which are made when they are
launched or when that program rests: in a context that both share, and with one each.

    benches/gpu/probes/graphs_beside.py --out results.json [--bin DIR] [--gpu GPU] [--restores 5]

The neighbour multiplies matrices, one after the other, all the time. Of the other one an image is restored again and again; it
launches a tenth of its graphs, and rests then. Needs a real GPU and torch. A minute.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches"), str(ROOT / "benches/gpu")]

GRAPHS, NODES = 800, 30
ALONE_S, REST_S = 3, 4


def wait_for_line(path, number):
    while not path.exists() or len(path.read_text().splitlines()) <= number:
        time.sleep(0.01)
    return path.read_text().splitlines()[number]


def neighbour(commands):
    """For each line of the commands: its iterations since the last one, when each ended and how long it took, seconds."""
    import torch

    a = torch.randn(1024, 1024, device="cuda")
    rows, number = [], 0
    print("ready", flush=True)
    while True:
        began = time.time()
        a @ a
        torch.cuda.synchronize()
        ended = time.time()
        rows.append((ended, ended - began))
        if commands.exists() and len(commands.read_text().splitlines()) > number:
            number += 1
            print(json.dumps(rows), flush=True)
            rows = []
        time.sleep(0.001)


def graphs(commands):
    """For each line of the commands: a tenth of its graphs, and how long their launches took."""
    import torch

    a, made = torch.ones(4096, device="cuda"), []
    for _ in range(GRAPHS):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                a.mul_(1.0)
        made.append(graph)
    for graph in made:
        graph.replay()
    torch.cuda.synchronize()
    print("ready", flush=True)
    number = 0
    while True:
        wait_for_line(commands, number)
        number += 1
        began = time.time()
        for graph in made[::10]:
            graph.replay()
        torch.cuda.synchronize()
        print(json.dumps({"seconds": time.time() - began, "right": bool((a == 1).all())}), flush=True)


def row_of(durations):
    if not durations:
        return None
    durations = sorted(durations)
    at = lambda part: durations[min(len(durations) - 1, int(len(durations) * part))]
    return {"count": len(durations), "median_s": statistics.median(durations), "p99_s": at(0.99), "most_s": durations[-1]}


class Scene:
    def __init__(self, rekindle, options):
        self.rekindle, self.options = rekindle, options
        self.told, self.known = rekindle.root / "neighbour", rekindle.root / "graphs"

    def begin(self, name, commands):
        options = (*self.options, "--gpu", self.rekindle.gpu)
        self.rekindle("run", "-d", "--name", name, *options, "--", sys.executable, __file__, name, commands)
        self.rekindle.wait_lines(name, 1)

    def iterations(self):
        before = len(self.rekindle.lines("neighbour"))
        with self.told.open("a") as told:
            told.write("tell\n")
        return json.loads(self.rekindle.wait_lines("neighbour", before + 1)[-1])

    def unmade(self, name):
        (row,) = self.rekindle.json("stats", "--no-stream", name)["sandboxes"]
        return row["unmade_graphs"]

    def restored(self):
        """The neighbour's iterations while the other is restored, while it launches, and while it rests."""
        self.known.unlink(missing_ok=True)
        time.sleep(2)
        self.iterations()
        began = time.time()
        report = self.rekindle.json("restore", "image", "--name", "graphs", "-d", *self.options)
        runs = time.time()
        self.known.write_text("launch\n")
        launched = json.loads(self.rekindle.wait_lines("graphs", 1)[-1])
        answered = time.time()
        time.sleep(REST_S)
        unmade = self.unmade("graphs")
        rested, rows = time.time(), self.iterations()
        within = lambda start, end: row_of([took for ended, took in rows if ended > start and ended - took < end])
        self.rekindle("kill", "graphs")
        self.rekindle.wait_end("graphs")
        self.rekindle("rm", "graphs")
        return {
            "running_s": runs - began,
            "launches": launched,
            "unmade_graphs_in_the_end": unmade,
            "restore": within(began, runs),
            "launching": within(runs, answered),
            "resting": within(answered, rested),
            "total_us": report["total_us"],
        }

    def measure(self, restores):
        self.begin("neighbour", self.told)
        self.iterations()
        time.sleep(ALONE_S)
        alone = row_of([took for _, took in self.iterations()])
        self.begin("graphs", self.known)
        self.rekindle("checkpoint", "graphs", "--to", "image", "--stop")
        self.rekindle.wait_end("graphs")
        self.rekindle("rm", "graphs")
        return {"alone": alone, "restores": [self.restored() for _ in range(restores)]}


def main():
    import hardware
    import raw
    from images import memory_directory
    from rekindle import Rekindle

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--bin", default=ROOT / "target/release", type=Path)
    parser.add_argument("--gpu", default="nvidia")
    parser.add_argument("--restores", type=int, default=5)
    options = parser.parse_args()
    results = {"machine": hardware.described(), "graphs": GRAPHS, "nodes": NODES}
    for way, shares in {"shared": ("--share", "bench"), "own": ()}.items():
        with memory_directory() as (memory, _), Rekindle(options.gpu, binaries=options.bin, state=memory) as rekindle:
            results[way] = Scene(rekindle, shares).measure(options.restores)
        options.out.write_text(raw.document(results))
        print(way, json.dumps(results[way]), file=sys.stderr, flush=True)


if sys.argv[1:2] in (["neighbour"], ["graphs"]):
    {"neighbour": neighbour, "graphs": graphs}[sys.argv[1]](Path(sys.argv[2]))
else:
    main()
