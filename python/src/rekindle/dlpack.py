"""Memory of a GPU as a DLPack tensor, which torch, CuPy and JAX take without a copy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CUDA = 2
CAPSULE = b"dltensor"


class Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("dimensions", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]

new_capsule: Any = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype = ctypes.c_void_p
pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

# As its end sees it: a reference would bring it back.
Ending = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
is_untaken: Any = ctypes.pythonapi["PyCapsule_IsValid"]
is_untaken.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
ending_pointer: Any = ctypes.pythonapi["PyCapsule_GetPointer"]
ending_pointer.restype = ctypes.c_void_p
ending_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

# What was handed out, by where it lies: with its shape and its owner, until whoever has it lets go of it.
held: dict[int, tuple[Managed, Any, object]] = {}


def forget(managed: Any) -> None:
    held.pop(ctypes.addressof(managed.contents), None)


def end(capsule: int) -> None:
    """One that was taken is called something else by then, and its taker lets go of it."""
    if is_untaken(capsule, CAPSULE):
        held.pop(ending_pointer(capsule, CAPSULE), None)


let_go, ended = Deleter(forget), Ending(end)
# What has a capsule may outlive this module, at the interpreter's end.
for callback in (let_go, ended):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))


def capsule(owner: object, address: int, device: int, kind: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """Of memory that is its owner's, which is held until whoever takes it lets go of it, or the capsule ends untaken."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    code, bits = kind
    tensor = Tensor(address, Device(CUDA, device), len(shape), DataType(code, bits, 1), sizes, None, 0)
    managed = Managed(tensor, None, let_go)
    place = ctypes.addressof(managed)
    held[place] = (managed, sizes, owner)
    return new_capsule(place, CAPSULE, ended)


@dataclass(frozen=True)
class View:
    """What a capsule shows, for as long as that is there. Strides and shape are in elements; no strides: in C order."""

    address: int
    device: tuple[int, int]
    kind: tuple[int, int]
    lanes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


def view(capsule: Any) -> View:
    """Of a capsule that nobody has taken."""
    tensor = ctypes.cast(pointer_of(capsule, CAPSULE), ctypes.POINTER(Managed)).contents.tensor
    sizes = range(tensor.dimensions)
    strides = ctypes.cast(tensor.strides, ctypes.POINTER(ctypes.c_int64)) if tensor.strides else None
    return View(
        (tensor.data or 0) + tensor.offset,
        (tensor.device.kind, tensor.device.number),
        (tensor.dtype.code, tensor.dtype.bits),
        tensor.dtype.lanes,
        tuple(tensor.shape[at] for at in sizes),
        tuple(strides[at] for at in sizes) if strides else None,
    )
