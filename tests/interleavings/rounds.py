"""Rounds of commands at the same time: each works, or is refused in a sentence that is known."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rekindle import CommandError

# What a user may be told in both modes; anything else is a defect.
REFUSED = [
    "there is no sandbox named",
    "a sandbox named .* exists",
    "is (starting|restoring|checkpointing|waking|falling asleep) just now; try again",
    r"is not running \(\w+\)",
    "there is no image named",
    "image named .* (already exists|is being made just now)",
    "ended while it was to be",
    "image .* is being read or run from",
]


def rounds(usual):
    return int(os.environ.get("REKINDLE_TEST_ROUNDS", usual))


def seeds(usual):
    return [int(seed) for seed in os.environ.get("REKINDLE_TEST_SEEDS", usual).split()]


@dataclass
class Outcome:
    arguments: tuple
    # None if it worked.
    refusal: str | None = None

    @property
    def worked(self):
        return self.refusal is None


def do(rekindle, arguments, refused):
    try:
        rekindle(*arguments)
    except CommandError as error:
        one_sentence = "\n" not in error.message and error.message.startswith("rekindle: ")
        known = any(re.search(sentence, error.message) for sentence in refused)
        assert error.code == 1 and one_sentence and known, str(error)
        return Outcome(arguments, error.message)
    return Outcome(arguments)


def play(rekindle, refused, begin, check, count):
    """`begin(number)` gives a round's commands, `check(outcomes)` looks at what has become of them."""
    done = []
    for number in range(count):
        try:
            commands = begin(number)
            done.append(commands)
            with ThreadPoolExecutor(len(commands)) as pool:
                outcomes = list(pool.map(lambda arguments: do(rekindle, arguments, refused), commands))
            done[-1] = outcomes
            check(outcomes)
        except Exception as error:
            raise AssertionError("after\n" + "\n".join(map(str, done))) from error
