"""Fixtures: a Rekindle of one's own."""

import pytest
from rekindle import Rekindle


@pytest.fixture
def rekindle():
    with Rekindle() as instance:
        yield instance
