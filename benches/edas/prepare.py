"""Makes a function's object, and computes its answers: `prepare.py NAME GPU WORK OBJECTS`.

Writes OBJECTS/NAME, and WORK/NAME.json with all that the ways need to know. What is measured begins after this.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import catalogue
import numpy
import objects


def prepare(name, gpu, work, directory):
    function = catalogue.build(catalogue.entries(gpu)[name], work / "kernels")
    function.open()
    file = directory / name
    chance = chance_of(function, seed=int(name.endswith("-b")))
    size = objects.write(file, function.tensors, lambda tensor: function.make(tensor, chance))
    function.plan = objects.read_plan(file)
    function.take_host(numpy.memmap(file, "uint8", "c"))
    answers = [function.compute(request) for request in range(catalogue.REQUESTS)]
    if not all(numpy.isfinite(answer).all() and answer[1] > 0 for answer in answers):
        raise RuntimeError(f"the answers of {name} are {answers}, which no mistake can be told from")
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function.compute(0)
        times.append(time.perf_counter() - start)
    return {
        "bytes": size,
        "plan": {tensor: [row.dtype, row.shape, row.begin, row.end] for tensor, row in function.plan.items()},
        "gpu_bytes": size + function.extra_bytes(),
        "answers": answers,
        "tolerance": function.tolerance,
        "compute_s": times,
        "apart": apart(answers),
    }


def apart(answers):
    """How far the two answers that are most alike differ, as a part of the mean of the absolute numbers."""
    pairs = itertools.combinations(answers, 2)
    return min(max(abs(a - b) for a, b in zip(one, other)) / one[1] for one, other in pairs)


def chance_of(function, seed):
    if isinstance(function, catalogue.Kernels):
        return numpy.random.default_rng(seed)
    import torch

    return torch.Generator(device="cuda").manual_seed(seed)


if __name__ == "__main__":
    name, gpu, work, directory = sys.argv[1:]
    row = prepare(name, gpu, Path(work), Path(directory))
    Path(work, f"{name}.part").write_text(json.dumps(row))
    Path(work, f"{name}.part").rename(Path(work, f"{name}.json"))
