"""What tests call: a function and a class that computes on the GPU."""

import ctypes
import os
import threading
import time
from pathlib import Path

import numpy
import rekindle

app = rekindle.App("calls")

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 number)
{
  .reg .u64 %address;
  .reg .u32 %number;
  ld.param.u64 %address, [number];
  cvta.to.global.u64 %address, %address;
  ld.global.u32 %number, [%address];
  add.u32 %number, %number, 1;
  st.global.u32 [%address], %number;
  ret;
}
\0"""


class OutOfPaperError(Exception):
    def __init__(self, tray, sheets):
        super().__init__(f"tray {tray} has {sheets} sheets")
        self.tray = tray


@app.function(gpu="emulated", concurrency=4)
def twice(value):
    return value * 2


@app.cls(gpu="emulated", share=False, concurrency=8, max_containers=1)
class Counter:
    """A number on the GPU, which is 10 in the image."""

    @rekindle.enter()
    def load(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.turn = threading.Lock()
        self.context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel, self.number = ctypes.c_void_p(), ctypes.c_uint64()
        device = ctypes.c_int()
        self.driver("cuInit", 0)
        self.driver("cuDeviceGet", ctypes.byref(device), 0)
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.driver("cuCtxSetCurrent", self.context)
        self.driver("cuModuleLoadData", ctypes.byref(module), PTX)
        self.driver("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"bump")
        self.driver("cuMemAlloc_v2", ctypes.byref(self.number), 4)
        self.driver("cuMemsetD32_v2", self.number, 10, 1)
        self.entered = ["image"]

    def driver(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed: {code}")

    @rekindle.enter(restored=True)
    async def restored(self):
        self.entered.append("instance")
        self.born = time.time_ns()

    def bump(self, number):
        self.driver("cuCtxSetCurrent", self.context)
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(number), ctypes.c_void_p))
        self.driver("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)

    @rekindle.method()
    def fault(self):
        """Where nothing is."""
        self.bump(ctypes.c_uint64(1 << 40))
        self.driver("cuCtxSynchronize")

    @rekindle.method()
    def count(self):
        seen = ctypes.c_uint32()
        with self.turn:
            self.bump(self.number)
            self.driver("cuMemcpyDtoH_v2", ctypes.byref(seen), self.number, 4)
        return seen.value

    @rekindle.method()
    def who(self):
        return self.entered, self.born

    @rekindle.method()
    def echo(self, *args, **kwargs):
        return args, kwargs

    @rekindle.method()
    def turned(self, array):
        array += 1
        return {"array": array.T, "sum": numpy.float32(array.sum())}

    @rekindle.method()
    def print(self, tray):
        raise OutOfPaperError(tray, 0)

    @rekindle.method()
    def quit(self, code):
        raise SystemExit(code)

    @rekindle.method()
    def lock(self):
        return self.turn

    @rekindle.method()
    async def add(self, a, b=1):
        return a + b

    @rekindle.method()
    def hold(self, name):
        Path(f"{name}.held").touch()
        while not os.path.exists(f"{name}.go"):
            time.sleep(0.01)
        return name

    @rekindle.exit()
    def leave(self):
        print("left", flush=True)


if __name__ == "__main__":
    try:
        Counter().print.remote(7)
    except OutOfPaperError as error:
        print(f"{type(error).__name__} of {type(error).__module__} caught: {error}; local {twice.local(2)}", flush=True)
