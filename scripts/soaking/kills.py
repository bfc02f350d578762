"""Kills of those who hold a program, many of them: `soak kills --kind criu --count 2000 --seed 1 --jobs 16 --out report.json`."""

import argparse
import collections
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from interleavings import holders, pod  # noqa: E402
from rekindle import Rekindle  # noqa: E402

MOST_EXAMPLES = 20


def play(arguments):
    """One worker's share: rounds until so many victims were struck."""
    kind, seed, count, mode = arguments
    environment, keep, driver = holders.environment(kind)
    outcomes, pods = [], None
    with tempfile.TemporaryDirectory() as directory, Rekindle(**environment) as rekindle:
        if kind == "relay":
            pods = pod.Pods([driver.directory, rekindle.root])
        program = holders.build(directory) if kind in ("criu", "init", "daemon") else None
        scene = holders.Scene(kind, seed, rekindle, program, driver, pods, mode)
        struck = 0
        try:
            while struck < count and len(outcomes) < count * 20 + 20:
                try:
                    outcome = scene.take()
                except Exception as error:
                    outcomes.append({"error": f"{type(error).__name__}: {error}"[:600], "seed": seed, "round": len(outcomes)})
                    scene.end()
                    if sum("error" in known for known in outcomes) > 5:
                        break
                    continue
                struck += outcome.victim is not None
                outcomes.append({**dataclasses.asdict(outcome), "word": outcome.word, "seed": seed, "round": len(outcomes)})
        finally:
            scene.end()
            if pods:
                pods.end()
    if keep:
        keep.cleanup()
    return outcomes


def report(kind, seed, jobs, outcomes, seconds):
    hit = [outcome for outcome in outcomes if outcome.get("victim")]
    failed = [outcome for outcome in outcomes if "error" in outcome]
    lost = [outcome for outcome in outcomes if outcome.get("word") == "neither"]
    wrong = [outcome for outcome in outcomes if outcome.get("wrong")]
    return {
        "kind": kind,
        "seed": seed,
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "rounds": len(outcomes),
        "kills": len(hit),
        "outcomes": dict(collections.Counter(outcome["word"] for outcome in hit)),
        "modes": dict(collections.Counter(outcome["mode"] for outcome in hit)),
        "lost": len(lost),
        "wrong": len(wrong),
        "errors": len(failed),
        "said": dict(collections.Counter(outcome["said"][:160] for outcome in hit).most_common(MOST_EXAMPLES)),
        "failures": (lost + wrong + failed)[:MOST_EXAMPLES],
    }


def main(words):
    parser = argparse.ArgumentParser(prog="soak kills", description=__doc__)
    parser.add_argument("--kind", choices=holders.KINDS, required=True)
    parser.add_argument("--mode", help="one of the kind's modes alone")
    parser.add_argument("--count", type=int, default=100, help="kills in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    began = time.monotonic()
    shares = [given.count // given.jobs + (job < given.count % given.jobs) for job in range(given.jobs)]
    work = [(given.kind, f"{given.seed}.{job}", share, given.mode) for job, share in enumerate(shares) if share]
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
        outcomes = [outcome for share in pool.map(play, work, chunksize=1) for outcome in share]
    found = report(given.kind, given.seed, given.jobs, outcomes, time.monotonic() - began)
    text = json.dumps(found, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    return 1 if found["lost"] or found["wrong"] or found["errors"] else 0
