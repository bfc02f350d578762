"""Twelve functions on one node, from `benches/edas/results.json`: sections for each run of the benchmark."""

import statistics

WAYS = ["run", "requests", "failed or wrong", "mean", "p50", "p99", "mean, second half", "answers a second", "fetched, MB", "GPU memory, GB"]


def ms(seconds):
    return "–" if seconds is None else f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"


def row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells):
    return [row(*cells), "| --- " * len(cells) + "|"]


def way(label, run):
    whole, peak, memory = run["summary"]["all"], run.get("peak"), run.get("gpu_memory")
    failed = whole["failed"] + whole["wrong"]
    numbers = [ms(whole[key]) for key in ("mean", "p50", "p99")] + [ms(run["later"]["mean"])]
    rate = f"{peak['answers_per_second']:.1f}" if peak else "–"
    used = f"{memory['mean'] / 1e9:.0f}, at most {memory['most'] / 1e9:.0f}" if memory else "–"
    shown = [rate, f"{run['fetched_bytes'] / 1e6:.1f}", used]
    return row(label, whole["requests"], failed, *numbers, *shown)


def parts(seconds):
    return ", ".join(f"{stage} {ms(value)}" for stage, value in seconds.items() if value >= 5e-5)


def stages(runs):
    """Where the time went, by what a request found: what the harness saw for the baselines, and what a call says of itself for Rekindle."""
    for label, run in runs.items():
        for found, some in run["summary"]["all"]["found"].items():
            yield row(label, found, some["requests"], ms(some["mean"]), parts(some["stages"]))


def figures(results):
    lines = []
    for result in results:
        runs = {label: run for label, run in result["runs"].items() if "summary" in run}
        trace = result["trace"]
        said = f"{len(result['prepared'])} functions, {trace['requests']} requests in {trace['seconds']:g} s of a trace ({trace['of']}); ms:"
        lines += [f"**{result['machine'].get('gpu', result['gpu'])}**, {result['label']}: {said}", ""]
        lines += [*head(*WAYS), *(way(label, run) for label, run in runs.items()), ""]
        lines += [*head("mean of", *runs)]
        for name in result["prepared"]:
            lines.append(row(name, *(ms(run["summary"]["functions"].get(name, {"mean": None})["mean"]) for run in runs.values())))
        lines += ["", *head("run", "a request found", "requests", "mean", "of that"), *stages(runs)]
        if measured := result.get("stages"):
            values = {stage: times for stage, times in measured["seconds"].items() if stage != "error"}
            lines += ["", *head(f"an answer of {measured['function']}, ms", *values)]
            for of, times in (("rekindle", values), *((("native", measured["native"]),) if "native" in measured else ())):
                lines.append(row(of, *(ms(statistics.median(times[stage])) if stage in times else "–" for stage in values)))
        for name, why in [*result["left_out"].items(), *((label, run["error"]) for label, run in result["runs"].items() if "summary" not in run)]:
            lines += ["", f"Not measured: {name}: {why.strip().splitlines()[-1][:200]}"]
    return lines
