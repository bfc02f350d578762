"""Raw values as JSON that people can read, and git can keep: times to a tenth of a microsecond, a list of numbers on one line."""

import json
import re


def document(value):
    """Seconds are rounded; everything else stays as it is."""
    text = json.dumps(rounded(value), indent=1)
    return re.sub(r"\[[-\d.e,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 7) if isinstance(value, float) else value
