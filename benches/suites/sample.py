"""A plugin of pytest's: of the tests that are selected, SUITE_MOST of each file, a random choice that is always the same."""

import os
import random

import pytest

MOST, SEED = int(os.environ["SUITE_MOST"]), 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    chosen = {*random.Random(SEED).sample(range(len(items)), min(MOST, len(items)))}
    config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at not in chosen])
    items[:] = [item for at, item in enumerate(items) if at in chosen]
