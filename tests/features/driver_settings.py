"""What the driver keeps for a process beside its GPU: settings of core dumps, the log, callbacks, what links can do."""

import ctypes
import os

from gpu import call, main, open_device

FILE, FLAGS, ON_EXCEPTION = 5, 7, 1


def setup():
    open_device()
    cuda = ctypes.CDLL("libcuda.so.1")
    device = call("cuCtxGetDevice")

    def get(name, setting, room):
        value, size = ctypes.create_string_buffer(room), ctypes.c_size_t(room)
        assert getattr(cuda, name)(setting, value, ctypes.byref(size)) == 0
        return value.raw[: size.value]

    def put(name, setting, value):
        size = ctypes.c_size_t(len(value))
        assert getattr(cuda, name)(setting, value, ctypes.byref(size)) == 0

    needed = ctypes.c_size_t()
    assert cuda.cuCoredumpGetAttribute(FLAGS, None, ctypes.byref(needed)) == 0 and needed.value == 4
    put("cuCoredumpSetAttributeGlobal", FILE, b"/tmp/of-all\0")
    put("cuCoredumpSetAttribute", FLAGS, (2).to_bytes(4, "little"))
    iterator, last = ctypes.c_uint(), ctypes.c_uint()
    assert cuda.cuLogsCurrent(ctypes.byref(iterator), 0) == 0
    called = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t)(
        lambda data, level, text, size: called.append(text)
    )
    listener, notified = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuLogsRegisterCallback(callback, None, ctypes.byref(listener)) == 0
    assert cuda.cuDeviceRegisterAsyncNotification(int(device), callback, None, ctypes.byref(notified)) in (0, 801)
    capabilities, operations = (ctypes.c_uint * 2)(), (ctypes.c_uint * 2)(0, 9)
    assert cuda.cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, int(device)) == 0

    def verify():
        assert get("cuCoredumpGetAttributeGlobal", FILE, 1024).split(b"\0")[0] == b"/tmp/of-all"
        assert get("cuCoredumpGetAttribute", FLAGS, 4) == (2).to_bytes(4, "little")
        again = (ctypes.c_uint * 2)()
        assert cuda.cuDeviceGetHostAtomicCapabilities(again, operations, 2, int(device)) == 0
        assert list(again) == list(capabilities)
        # Refused everywhere: an object of another interface that there is none of. A sandbox says so on standard error too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        assert cuda.cuImportExternalMemory(ctypes.byref(ctypes.c_void_p()), None) != 0
        size, text = ctypes.c_size_t(25600), ctypes.create_string_buffer(25600)
        assert cuda.cuLogsDumpToMemory(ctypes.byref(iterator), text, ctypes.byref(size), 0) == 0
        assert len(text.value) == size.value
        # In a sandbox the log has it, and the callback was told.
        if call("cuDeviceGetName", 64, device).startswith(b"Rekindle"):
            assert b"cuImportExternalMemory" in text.value and called, (text.value, called)
        assert cuda.cuLogsCurrent(ctypes.byref(last), 0) == 0 and last.value == iterator.value
        assert callback and cuda.cuLogsUnregisterCallback(listener) == 0
        if notified:
            assert cuda.cuDeviceUnregisterAsyncNotification(int(device), notified) == 0

    return verify


main(setup)
