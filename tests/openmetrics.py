"""What a daemon tells Prometheus, read strictly: https://prometheus.io/docs/specs/om/open_metrics_spec/."""

import math
import re

NAME = r"[a-z_]+"
LABEL = rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL},)*(?:{LABEL})?)\}} (\S+)")
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


class Metrics:
    """Samples by their names and labels."""

    def __init__(self, text):
        *lines, end, rest = text.split("\n")
        assert (end, rest) == ("# EOF", ""), "the end is missing"
        self.kinds, self.samples, family = {}, {}, None
        for line in lines:
            match line.split(" ", 3):
                case ["#", "HELP", name, help]:
                    assert name not in self.kinds and help[0].isupper() and help.endswith("."), line
                    family, self.kinds[name] = name, None
                case ["#", "TYPE", name, kind]:
                    assert name == family and self.kinds[name] is None and kind in SUFFIXES, line
                    self.kinds[name] = kind
                case ["#", "UNIT", name, unit]:
                    assert name == family and name.endswith(f"_{unit}") and unit in ("bytes", "seconds"), line
                case _:
                    self.add(line, family)
        for family in [family for family, kind in self.kinds.items() if kind == "histogram"]:
            self.check_histogram(family)

    def add(self, line, family):
        found = SAMPLE.fullmatch(line)
        assert found, line
        name, labels, value = found[1], re.findall(LABEL, found[2]), float(found[found.re.groups])
        assert name in [family + suffix for suffix in SUFFIXES[self.kinds[family]]] and name.startswith("rekindle_"), line
        key = frozenset((label, re.sub(r"\\.", lambda escape: ESCAPES[escape[0]], text)) for label, text in labels)
        assert len({label for label, _ in labels}) == len(labels) and (name, key) not in self.samples, line
        assert not math.isnan(value) and value >= 0, line
        self.samples[name, key] = value

    def check_histogram(self, family):
        """Buckets hold those below them, and the last all."""
        for (name, labels), count in self.samples.items():
            if name == f"{family}_count":
                own = {bound: number for bound, number in self.buckets(family, labels)}
                assert list(own.values()) == sorted(own.values()) and own[math.inf] == count, (family, labels)

    def buckets(self, family, labels):
        for (name, all_labels), number in self.samples.items():
            bound = dict(all_labels).get("le")
            if name == f"{family}_bucket" and all_labels - {("le", bound)} == labels:
                yield float(bound), number

    def get(self, name, **labels):
        """The value of the samples with these labels together; None if there is none."""
        wanted = {(label, text) for label, text in labels.items()}
        found = [value for (other, own), value in self.samples.items() if other == f"rekindle_{name}" and wanted <= own]
        return sum(found) if found else None

    def labels(self, name, label):
        return {dict(own)[label] for other, own in self.samples if other == f"rekindle_{name}"}

    def only_grow_to(self, later):
        """Counters are not less later."""
        grows = [name for name, kind in self.kinds.items() if kind != "gauge"]
        for (name, labels), value in self.samples.items():
            if any(name.startswith(family) for family in grows) and (name, labels) in later.samples:
                assert later.samples[name, labels] >= value, (name, labels)
