"""What the rows of requests say."""

import json
import re
import statistics

DIRECTORIES = re.compile(r"(?<![\w:/.])/(?:[^\s/:'\",]+/)+")


def document(value, depth=5):
    """JSON with a line for each request; numbers to a millionth."""
    if isinstance(value, dict | list) and value and depth and not (isinstance(value, list) and not isinstance(value[0], dict | list)):
        pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
        rows = (f"{json.dumps(key)}: {document(one, depth - 1)}" if isinstance(value, dict) else document(one, depth - 1) for key, one in pairs)
        text = ",\n".join(rows).replace("\n", "\n ")
        return f"{{\n {text}\n}}" if isinstance(value, dict) else f"[\n {text}\n]"
    return json.dumps(rounded(value))


def rounded(value):
    """As it is written: of paths of this machine the last name alone."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return DIRECTORIES.sub("", value)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def of_requests(rows):
    """Latencies in seconds, of answers that are right."""
    times = [row["latency"] for row in rows if row.get("right")]
    found = {stage: [row for row in rows if row.get("found") == stage] for stage in sorted({row["found"] for row in rows if "found" in row})}
    return {
        "requests": len(rows),
        "wrong": sum(row.get("right") is False for row in rows),
        "failed": sum("right" not in row for row in rows),
        "mean": statistics.fmean(times) if times else None,
        "p50": at(times, 0.5),
        "p99": at(times, 0.99),
        "stages": stages(rows),
        # By what the request found of its function.
        "found": {stage: {"requests": len(some), "mean": mean(some), "stages": stages(some)} for stage, some in found.items()},
    }


def mean(rows):
    return statistics.fmean(row["latency"] for row in rows)


def stages(rows):
    """Mean seconds of each; who found a stage done has 0 of it, so that they add up to what the mean request took."""
    names = dict.fromkeys(stage for row in rows for stage in row.get("seconds", {}))
    return {stage: sum(row.get("seconds", {}).get(stage, 0) for row in rows) / len(rows) for stage in names}


def of_run(rows):
    names = sorted({row["function"] for row in rows})
    return {"all": of_requests(rows), "functions": {name: of_requests([row for row in rows if row["function"] == name]) for name in names}}


def milliseconds(seconds):
    return "-" if seconds is None else f"{1000 * seconds:.0f}" if seconds >= 0.01 else f"{1000 * seconds:.1f}"


def table(results):
    """Lines of text: a row for each run, and then one for each function."""
    runs = results["runs"]
    lines = [f"{'run':22}{'requests':>9}{'wrong':>6}{'failed':>7}{'mean ms':>9}{'p50':>8}{'p99':>8}{'later':>8}{'peak/s':>8}{'GPU GB':>8}"]
    for label, run in runs.items():
        if "summary" not in run:
            lines.append(f"{label:22} {run['error'][:100]}")
            continue
        whole, peak, memory = run["summary"]["all"], run.get("peak"), run.get("gpu_memory")
        lines.append(
            f"{label:22}{whole['requests']:9}{whole['wrong']:6}{whole['failed']:7}"
            + "".join(f"{milliseconds(whole[key]):>{width}}" for key, width in (("mean", 9), ("p50", 8), ("p99", 8)))
            + f"{milliseconds(run['later']['mean']):>8}"
            + f"{peak['answers_per_second'] if peak else 0:8.1f}{memory['most'] / 1e9 if memory else 0:8.1f}"
        )
    done = {label: run["summary"]["functions"] for label, run in runs.items() if "summary" in run}
    lines += ["", f"{'mean ms':16}" + "".join(f"{label[:17]:>18}" for label in done)]
    for name in sorted({name for functions in done.values() for name in functions}):
        lines.append(f"{name:16}" + "".join(f"{milliseconds(one[name]['mean']) if name in one else '-':>18}" for one in done.values()))
    if "error" in results:
        lines += ["", results["error"].splitlines()[0][:300]]
    if stages := results.get("stages"):
        shown = [f"{stage} {milliseconds(statistics.median(times))}" for stage, times in stages["seconds"].items() if stage != "error"]
        lines += ["", f"{stages['function']} by stage, ms: {', '.join(shown)}"]
    lines += [f"left out: {name}: {why.strip().splitlines()[-1][:160]}" for name, why in results["left_out"].items()]
    return lines
