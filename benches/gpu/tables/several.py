"""Programs that use two GPUs, from `h200-several.json`."""


def figures(results):
    lines = ["| program | GPU memory, GB | stands still, ms | it goes on | restored | restored, GPUs the other way round |", "| --- " * 6 + "|"]
    for name, row in results["several"].items():
        if "checkpoint" not in row:
            lines.append(f"| {name} | | | {row['error']} | | |")
            continue
        numbers = f"{row['sizes']['gpu'] / 1e9:.1f} | {row['checkpoint']['stopped_us'] / 1e3:.0f}"
        lines.append(f"| {name} | {numbers} | {row['went on']} | {row['restored']} | {row['swapped']} |")
    return lines
