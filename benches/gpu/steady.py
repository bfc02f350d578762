"""Steady state: the same program native and in a sandbox, asked for a batch in turn; and what memory the sandbox adds."""

import statistics

from programs import Native, python_program, resident, wait_for

WORKLOADS = ["gpt2-large", "gpt2-train", "resnet18"]


def measure(rekindle, name, work, rounds=9):
    asks = {side: work / f"{name}-{side}-ask" for side in ("native", "sandbox")}
    label = f"steady-{name}"
    native = Native(python_program(name, "--batches", asks["native"]), work / f"{name}-native.log")
    try:
        rekindle.run(label, *python_program(name, "--batches", asks["sandbox"]))
        native.wait_ready()
        wait_for(lambda: "ready" in rekindle.lines(label) or not rekindle.sandbox(label)["pid"], 120, f"sandboxed {name}")
        lines = {"native": native.lines, "sandbox": lambda: rekindle.lines(label)}
        batches = {side: [] for side in lines}
        for _ in range(rounds):
            for side in lines:
                count = len(values(lines[side]()))
                asks[side].touch()
                wait_for(lambda: len(values(lines[side]())) > count, 60, f"a batch of {side} {name}")
                batches[side].append(values(lines[side]())[-1])
        memory = {
            "native": resident([native.process.pid]),
            "sandbox": resident([rekindle.sandbox(label)["pid"]]),
            "worker": resident(rekindle.sandbox(label)["workers"]),
            "ring": ring_bytes(rekindle),
        }
    finally:
        native.end()
        rekindle("kill", label, check=False)
    ratios = [sandboxed / alone for alone, sandboxed in zip(batches["native"], batches["sandbox"])]
    return {
        "ok": True,
        "native_ms": batches["native"],
        "sandbox_ms": batches["sandbox"],
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "resident_bytes": memory,
        "extra_resident_bytes": memory["sandbox"] + memory["worker"] - memory["native"],
    }


def values(lines):
    return [float(line.split()[1]) for line in lines if line.startswith("batch")]


def ring_bytes(rekindle):
    """Resident bytes of the files that program and worker share."""
    return sum(path.stat().st_blocks * 512 for path in rekindle.run_root.rglob("ring-*"))
