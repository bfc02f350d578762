"""Copies of boxes in batches, between memory of the GPU, pinned and pageable memory; a pitch on either side."""

import ctypes

import numpy as np
from gpu import at, call, download, main, open_device, upload

WIDTH, HEIGHT, DEPTH, ROW, LAYER = 24, 5, 3, 32, 7
POINTER, STREAM_ORDER, DURING_CALL = 1, 1, 2


class Operand(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint),
        ("address", ctypes.c_uint64),
        ("row", ctypes.c_size_t),
        ("layer", ctypes.c_size_t),
        ("hint", ctypes.c_uint * 2),
    ]


class Operation(ctypes.Structure):
    _fields_ = [("source", Operand), ("target", Operand), ("extent", ctypes.c_size_t * 3), ("order", ctypes.c_uint), ("flags", ctypes.c_uint)]


def setup():
    open_device()
    cuda = ctypes.CDLL("libcuda.so.1")
    stream = call("cuStreamCreate", 1)
    size = ROW * LAYER * DEPTH
    spaced = np.arange(size, dtype=np.uint32).astype(np.uint8)
    inner = spaced.reshape(DEPTH, LAYER, ROW)[:, :HEIGHT, :WIDTH].copy()
    on_gpu, packed = upload(spaced), call("cuMemAlloc", inner.size)
    pinned = at(call("cuMemHostAlloc", inner.size, 0), inner.size, np.uint8)

    def batch(*operations):
        made = [
            Operation(
                Operand(POINTER, source, *source_pitch), Operand(POINTER, target, *target_pitch), (ctypes.c_size_t * 3)(WIDTH, HEIGHT, DEPTH), order
            )
            for (source, source_pitch), (target, target_pitch), order in operations
        ]
        array = (Operation * len(made))(*made)
        return cuda.cuMemcpy3DBatchAsync_v2(ctypes.c_size_t(len(made)), array, ctypes.c_uint64(0), ctypes.c_void_p(int(stream)))

    wide, tight = (ROW, LAYER), (0, 0)

    def verify():
        pageable = np.zeros(inner.size, np.uint8)
        target = call("cuMemAlloc", size)
        call("cuMemsetD8", target, 0, size)
        # Nothing else orders it before work of a stream that does not wait for the default one.
        call("cuStreamSynchronize", 0)
        # Each before the next, which reads what it wrote.
        assert batch(((int(on_gpu), wide), (int(packed), tight), STREAM_ORDER)) == 0
        assert (
            batch(((int(packed), tight), (pinned.ctypes.data, tight), STREAM_ORDER), ((int(packed), tight), (int(target), wide), STREAM_ORDER)) == 0
        )
        call("cuStreamSynchronize", stream)
        assert (pinned.reshape(inner.shape) == inner).all()
        assert (download(target, size, np.uint8).reshape(DEPTH, LAYER, ROW)[:, :HEIGHT, :WIDTH] == inner).all()
        pageable[:] = 255 - inner.reshape(-1)
        assert batch(((pageable.ctypes.data, tight), (int(target), wide), DURING_CALL)) == 0
        call("cuStreamSynchronize", stream)
        assert (download(target, size, np.uint8).reshape(DEPTH, LAYER, ROW)[:, :HEIGHT, :WIDTH] == 255 - inner).all()
        assert batch(((int(on_gpu), (WIDTH - 1, 0)), (int(packed), tight), STREAM_ORDER)) == 1
        assert batch(((int(on_gpu), wide), (int(packed), tight), 9)) == 1

    verify()
    return verify


main(setup)
