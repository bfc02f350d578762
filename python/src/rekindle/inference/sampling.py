"""Which token comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy


@dataclass(frozen=True)
class Chosen:
    token: int
    logprob: float = 0.0
    # The most likely ones, in falling order; they are looked for only if somebody wants them.
    most_likely: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    # How many of the most likely ones are wanted; none: no logarithms at all.
    logprobs: int | None = None


class Sampler:
    """Of one sequence. With the same seed and logits it takes the same tokens."""

    def __init__(self, sampling: Sampling, size: int) -> None:
        self.sampling, self.size = sampling, size
        self.random = numpy.random.default_rng(sampling.seed)

    def take(self, logits: numpy.ndarray[Any, Any]) -> Chosen:
        values = numpy.asarray(logits, "float64").reshape(-1)[: self.size]
        if numpy.isnan(values).any():
            raise FloatingPointError("the model's logits are no numbers; look at its weights")
        token = self.token(values)
        if self.sampling.logprobs is None:
            return Chosen(token)
        shifted = values - values.max()
        logs = shifted - numpy.log(numpy.exp(shifted).sum())
        first = numpy.argsort(-logs, kind="stable")[: self.sampling.logprobs]
        return Chosen(token, float(logs[token]), tuple((int(one), float(logs[one])) for one in first))

    def token(self, values: numpy.ndarray[Any, Any]) -> int:
        temperature = self.sampling.temperature
        if temperature < 1e-5 or self.sampling.top_p == 0:
            return int(values.argmax())
        weights = numpy.exp((values - values.max()) / temperature)
        if self.sampling.top_p < 1:
            order = numpy.argsort(-weights, kind="stable")
            sums = numpy.cumsum(weights[order])
            # Up to the one with which the share is reached.
            weights[order[1 + int(numpy.searchsorted(sums, self.sampling.top_p * sums[-1])) :]] = 0
        sums = numpy.cumsum(weights)
        return int(numpy.searchsorted(sums, self.random.random() * sums[-1], side="right"))
