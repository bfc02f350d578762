"""What a framework keeps for itself is given back before an image is taken of an instance whose GPU memory comes at the first use."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from rekindle.serving.caches import empty_caches


@pytest.fixture
def emptied(monkeypatch):
    """How often a torch that is imported and used was asked to give memory back."""
    count = []
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: count.append(None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return count


def test_torch_is_asked_to_give_back_what_it_keeps(emptied):
    empty_caches()
    assert len(emptied) == 1


def test_a_torch_that_was_not_used_is_left_alone(emptied, monkeypatch):
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_initialized", lambda: False)
    empty_caches()
    monkeypatch.delitem(sys.modules, "torch")
    empty_caches()
    assert not emptied
