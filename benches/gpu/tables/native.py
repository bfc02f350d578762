"""Programs native and in a sandbox in turn, from `h200-native.json`."""

from tables.common import spread


def figures(results):
    lines = ["| program | native | in a sandbox | ratio of medians |", "| --- | --- | --- | --- |"]
    for name, row in results["cold"].items():
        lines.append(
            f"| {name}, from its start to its first answer, s | {spread(row['starts_s'], 1)} | {spread(row['sandbox_starts_s'], 1)} | {row['ratio']:.2f} |"
        )
    for name, row in results["steady"].items():
        lines.append(f"| {name}, a batch, ms | {spread(row['native_ms'], 0)} | {spread(row['sandbox_ms'], 0)} | {row['ratio']:.2f} |")
    return lines
