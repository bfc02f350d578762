"""Waits behind copies to pageable memory, which are over when they return: what is asked for since is waited for all the same."""

import threading

import numpy as np
from gpu import Module, at, call, driver, main, open_device, upload

SOURCE = """
extern "C" __global__ void late(volatile unsigned *flag, unsigned turns, unsigned value) {
    unsigned sum = 0;
    for (unsigned turn = 0; turn < turns; turn++) sum = sum * 1664525u + turn;
    *flag = value + (sum == 1u);
}"""
TURNS = 20_000
SIZE = 4096


def setup():
    open_device()
    module = Module(SOURCE)
    stream, other = (call("cuStreamCreate", 1) for _ in range(2))
    flag = at(call("cuMemHostAlloc", 64, 0), 16, np.uint32)
    pattern = np.arange(SIZE, dtype=np.uint8)
    source, back = upload(pattern), np.zeros(SIZE, np.uint8)

    def fetch(on):
        back[:] = 0
        call("cuMemcpyDtoHAsync", back.ctypes.data, source, SIZE, on)
        assert np.array_equal(back, pattern)

    def late(on, value):
        module.late(1, 1, np.uint64(flag.ctypes.data), TURNS, value, stream=on)

    def in_thread(work):
        thread = threading.Thread(target=lambda: (call("cuCtxSetCurrent", context), work()))
        thread.start()
        thread.join()

    context = call("cuCtxGetCurrent")

    def check(first):
        for round_, on in enumerate((stream, driver.CUstream(0), driver.CUstream(2))):
            value = first + 10 * round_
            # Nothing is under way.
            fetch(on)
            call("cuStreamSynchronize", on)
            assert driver.cuStreamQuery(on)[0].value == 0
            # More by this thread.
            fetch(on)
            late(on, value)
            call("cuStreamSynchronize", on)
            assert flag[0] == value
            assert driver.cuStreamQuery(on)[0].value == 0
            # By another thread, but for the stream that each thread has for itself.
            if int(on) != 2:
                fetch(on)
                in_thread(lambda value=value, on=on: late(on, value + 1))
                call("cuStreamSynchronize", on)
                assert flag[0] == value + 1
            # Behind work of another stream.
            event = call("cuEventCreate", 2)
            fetch(on)
            late(other, value + 2)
            call("cuEventRecord", event, other)
            call("cuStreamWaitEvent", on, event, 0)
            call("cuStreamSynchronize", on)
            assert flag[0] == value + 2
            call("cuEventDestroy", event)
        # A capture begins.
        fetch(stream)
        call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(2))
        assert driver.cuStreamSynchronize(stream)[0].value != 0
        assert driver.cuStreamEndCapture(stream)[0].value != 0
        fetch(stream)
        # Uploads alone, and a look from elsewhere.
        for number in range(20):
            data = np.full(SIZE, number, np.uint8)
            call("cuMemcpyHtoDAsync", source, data.ctypes.data, SIZE, stream)
            call("cuStreamSynchronize", stream)
            call("cuMemcpyDtoHAsync", back.ctypes.data, source, SIZE, other)
            assert np.array_equal(back, data)
        call("cuMemcpyHtoDAsync", source, pattern.ctypes.data, SIZE, stream)
        late(stream, first + 50)
        call("cuStreamSynchronize", stream)
        assert flag[0] == first + 50
        # Goes on behind the checkpoint.
        fetch(stream)

    check(100)

    def verify():
        call("cuStreamSynchronize", stream)
        check(1000)

    return verify


main(setup)
