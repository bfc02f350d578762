"""What all tables have in common."""

import statistics


def spread(values, digits):
    """Median and range; of one value, the value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def verdict(reached):
    return "reached" if reached else "**not reached**"


def machine(results):
    row = results["machine"]
    names = ["gpu", "processor", "cores", "kernel", "images_in", "time"]
    return ["| | |", "| --- | --- |", *(f"| {name.replace('_', ' ')} | {row[name]} |" for name in names)]
