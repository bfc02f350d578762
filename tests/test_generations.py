"""Generations: a restored program is changed, taken and brought back again, and knows every byte of its memory each time."""

import pytest
from generations import chain
from generations.chain import Chain


@pytest.fixture(scope="module")
def wander(tmp_path_factory):
    return chain.build(tmp_path_factory.mktemp("generations"))


@pytest.mark.parametrize("seed", [1, 2, 3, 6])
def test_every_generation_has_every_byte(rekindle, wander, seed):
    generations = Chain(rekindle, wander, seed)
    generations.begin()
    for _ in range(20):
        generations.step()
    generations.end()
