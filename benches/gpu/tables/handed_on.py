"""Arrays handed on where they lie and as values, from `benches/handon/results.json`: a section for each run of the benchmark."""

from tables.common import spread

NAMES = {"ref": "by reference", "put": "of that `put`", "get": "of that `get`", "value": "by value"}


def size(count):
    return f"{count >> 20} MB" if count >> 20 else f"{count >> 10} KB"


def figures(results):
    lines = []
    for run in results:
        lines += [
            *([""] if lines else []),
            f"**{run['gpu']}**, {run['label']}; ms:",
            "",
            f"| array | {' | '.join(NAMES.values())} |",
            "| --- " * (len(NAMES) + 1) + "|",
        ]
        for row in run["sizes"]:
            cells = [spread([1000 * value for value in row["seconds"][name]], 1) for name in NAMES]
            lines.append(f"| {size(row['bytes'])} | {' | '.join(cells)} |")
    return lines
