"""Streams keep their flags and priorities, events their state and the time between them."""

import time

from gpu import call, driver, main, open_device


def setup():
    open_device()
    low, high = call("cuCtxGetStreamPriorityRange")
    streams = [call("cuStreamCreateWithPriority", flags, priority) for flags in (0, 1) for priority in (low, high)]
    start, end, untimed, never = (call("cuEventCreate", flags) for flags in (0, 0, 2, 0))
    call("cuEventRecord", start, streams[0])
    call("cuStreamSynchronize", streams[0])
    time.sleep(0.05)
    call("cuEventRecord", end, streams[0])
    call("cuEventRecord", untimed, streams[1])
    call("cuEventSynchronize", end)
    before = call("cuEventElapsedTime", start, end)

    def verify():
        assert [call("cuStreamGetFlags", s) for s in streams] == [0, 0, 1, 1]
        assert [call("cuStreamGetPriority", s) for s in streams] == [low, high, low, high]
        assert abs(call("cuEventElapsedTime", start, end) - before) < 0.01 and 45 < before < 120_000
        assert driver.cuEventQuery(untimed)[0].value == 0
        assert driver.cuEventElapsedTime(start, never)[0].value == 400
        later = call("cuEventCreate", 0)
        call("cuStreamWaitEvent", streams[2], end, 0)
        call("cuEventRecord", later, streams[2])
        call("cuEventSynchronize", later)
        assert call("cuEventElapsedTime", start, later) >= 0
        for stream in streams:
            call("cuStreamDestroy", stream)

    return verify


main(setup)
