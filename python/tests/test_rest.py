"""An instance whose GPU memory comes at the first use has its framework give back what it keeps, when there is no call."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rekindle.serving import rest


@pytest.fixture
def emptied(monkeypatch):
    """How often a torch that is imported and used was asked to give memory back."""
    count = []
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: count.append(None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(rest, "QUIET", 0.02)
    return count


def test_it_gives_back_once_it_has_had_no_call_for_a_moment(emptied):
    async def calls():
        resting = rest.Rest(lambda do: do())
        for under_way in (1, 0):
            resting.begin_call()
            resting.end_call(under_way)
            assert not emptied
        resting.begin_call()
        await asyncio.sleep(0.1)
        assert not emptied
        resting.end_call(0)
        await asyncio.sleep(0.1)

    asyncio.run(calls())
    assert len(emptied) == 1


def test_a_torch_that_was_not_used_is_left_alone(emptied, monkeypatch):
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_initialized", lambda: False)
    rest.give_back()
    monkeypatch.delitem(sys.modules, "torch")
    rest.give_back()
    assert not emptied
