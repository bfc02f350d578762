"""Pageable copies natively and in sandboxes, from `benches/copies/results.json`: a section for each run of the benchmark."""

from statistics import median

NAMES = {
    "up": "to the GPU",
    "down": "from the GPU",
    "up, waited for": "to the GPU, asynchronous, and a wait",
    "down, waited for": "from the GPU, asynchronous, and a wait",
}


def size(count):
    return f"{count >> 20} MB" if count >> 20 else f"{count >> 10} KB"


def figures(results):
    lines = []
    for label, run in results.items():
        ways = list(run["rounds"][0])
        ratios = [way for way in ways if way != "native" and "native" in ways]
        lines += [
            *([""] if lines else []),
            f"**{label}**, µs, medians of {len(run['rounds'])} rounds:",
            "",
            f"| copy | {' | '.join(ways)} | {' | '.join(f'{way} over native' for way in ratios)} |",
            "| --- " * (1 + len(ways) + len(ratios)) + "|",
        ]
        for kind, name in NAMES.items():
            for count in run["rounds"][0][ways[0]][kind]:
                took = {way: median(one[way][kind][count] for one in run["rounds"]) for way in ways}
                cells = [f"{took[way] * 1e6:.1f}" for way in ways]
                cells += [f"{took[way] / took['native']:.2f}" for way in ratios]
                lines.append(f"| {size(int(count))} {name} | {' | '.join(cells)} |")
    return lines
