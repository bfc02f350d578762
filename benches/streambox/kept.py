"""What a native program keeps of a result for the next function: in the host's memory, or where it is."""

import collections
import itertools
import mmap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy


@dataclass(frozen=True)
class Handle:
    """A result that is kept: small, and sent to whoever is called with it."""

    name: str
    value: Any = None


@dataclass(frozen=True)
class Spot:
    """Where an array lies in a file."""

    at: int
    dtype: str
    shape: tuple


def is_array(value):
    return isinstance(value, numpy.ndarray) or hasattr(value, "__cuda_array_interface__")


def replaced(value, replace):
    """The value, with something else for each array in it."""
    if type(value) in (list, tuple):
        return type(value)(replaced(one, replace) for one in value)
    if type(value) is dict:
        return {key: replaced(one, replace) for key, one in value.items()}
    return replace(value)


def copy(array, to):
    """From the GPU, or the host, into the host's memory."""
    if isinstance(array, numpy.ndarray):
        to[...] = array
    elif hasattr(array, "copy_to_host"):
        array.copy_to_host(to)
    else:
        import torch

        torch.from_numpy(to).copy_(array)


class OnHost:
    """Arrays in files that programs have in common in memory: copied there from the GPU, and from there by whoever takes them.

    A file that nobody needs any more is used again, and stays mapped: its pages are there.
    """

    def __init__(self, place):
        self.place, self.mapped, self.turn = Path(place), {}, threading.Lock()
        # Names by sizes: of those that this program made.
        self.free = collections.defaultdict(list)

    def keep(self, value, uses):
        arrays, end = [], 0

        def spot(one):
            nonlocal end
            if not is_array(one):
                return one
            dtype = str(one.dtype).removeprefix("torch.")
            arrays.append((one, Spot(end, dtype, tuple(one.shape))))
            size = int(numpy.prod(one.shape)) * numpy.dtype(dtype).itemsize
            end += -(-size // 4096) * 4096
            return arrays[-1][1]

        tree = replaced(value, spot)
        if not end:
            return Handle("", tree)
        name = self.file(end)
        for array, where in arrays:
            copy(array, numpy.ndarray(where.shape, where.dtype, self.mapped[name], where.at))
        return Handle(name, tree)

    def file(self, size):
        with self.turn:
            if self.free[size]:
                return self.free[size].pop()
        name = f"{time.time_ns():x}-{threading.get_ident():x}"
        with open(self.place / name, "w+b") as file:
            file.truncate(size)
            self.mapped[name] = mmap.mmap(file.fileno(), size)
        return name

    def take(self, handle):
        if not handle.name:
            return handle.value
        with self.turn:
            if handle.name not in self.mapped:
                with open(self.place / handle.name, "r+b") as file:
                    self.mapped[handle.name] = mmap.mmap(file.fileno(), 0)
            mapped = self.mapped[handle.name]
        return replaced(handle.value, lambda one: numpy.ndarray(one.shape, one.dtype, mapped, one.at) if type(one) is Spot else one)

    def release(self, names):
        """All who were called with them have ended."""
        with self.turn:
            for name in names:
                self.free[len(self.mapped[name])].append(name)


class Here:
    """In this process, for as many as take it."""

    def __init__(self, _place):
        self.values, self.names, self.turn = {}, itertools.count(), threading.Lock()

    def keep(self, value, uses):
        name = str(next(self.names))
        with self.turn:
            self.values[name] = [value, uses]
        return Handle(name)

    def take(self, handle):
        with self.turn:
            entry = self.values[handle.name]
            entry[1] -= 1
            if not entry[1]:
                del self.values[handle.name]
            return entry[0]

    def release(self, _names):
        """Who took it last let go of it."""


STORES = {"host": OnHost, "here": Here}
