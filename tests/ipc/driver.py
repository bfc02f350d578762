"""The driver by ctypes, as far as the programs here need it."""

import ctypes
import hashlib
import os

SIZE = 4096
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 numbers, .param .u32 factor)
{
  .reg .u64 %address, %offset;
  .reg .u32 %thread, %block, %width, %number, %factor;
  ld.param.u64 %address, [numbers];
  ld.param.u32 %factor, [factor];
  cvta.to.global.u64 %address, %address;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mad.lo.u32 %thread, %block, %width, %thread;
  mul.wide.u32 %offset, %thread, 4;
  add.u64 %address, %address, %offset;
  ld.global.u32 %number, [%address];
  mad.lo.u32 %number, %number, %factor, %thread;
  st.global.u32 [%address], %number;
  ret;
}
\0"""

LAZY_PEER_ACCESS = 1
NON_BLOCKING = 1
THREAD_LOCAL = 1
# No timing, interprocess.
SHARED_EVENT = 6


class Handle(ctypes.Structure):
    """`CUipcMemHandle` and `CUipcEventHandle`."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    @classmethod
    def of(cls, text):
        return cls.from_buffer_copy(bytes.fromhex(text))

    def __str__(self):
        return bytes(self.bytes).hex()


class Cuda:
    """A context on the GPU of the number `RELAY_GPU`, a stream, and a kernel that steps numbers."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), int(os.environ.get("RELAY_GPU", 0)))
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self("cuModuleLoadData", ctypes.byref(module), PTX)
        self("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"step")
        self("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)

    def code(self, name, *arguments):
        """What a function returns."""
        return getattr(self.cuda, name)(*arguments)

    def __call__(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            raise RuntimeError(f"{name} failed: {code}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), size)
        return address

    def memory_handle(self, address):
        handle = Handle()
        self("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return handle

    def open_memory(self, handle):
        address = ctypes.c_uint64()
        self("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, LAZY_PEER_ACCESS)
        return address

    def event(self, flags=SHARED_EVENT):
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), flags)
        return event

    def event_handle(self, event):
        handle = Handle()
        self("cuIpcGetEventHandle", ctypes.byref(handle), event)
        return handle

    def open_event(self, handle):
        event = ctypes.c_void_p()
        self("cuIpcOpenEventHandle", ctypes.byref(event), handle)
        return event

    def step(self, numbers, factor):
        """Steps `SIZE` numbers, in the stream's order."""
        words = [numbers, ctypes.c_uint32(factor)]
        pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(word), ctypes.c_void_p) for word in words))
        self("cuLaunchKernel", self.kernel, SIZE // 256, 1, 1, 256, 1, 1, 0, self.stream, pointers, None)

    def instance(self, work):
        """Of a graph with what is done to the stream."""
        graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuStreamBeginCapture_v2", self.stream, THREAD_LOCAL)
        work()
        self("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
        return instance

    def hash(self, address, size=4 * SIZE):
        """Of memory, when the stream is done."""
        found = (ctypes.c_ubyte * size)()
        self("cuMemcpyDtoHAsync_v2", found, address, size, self.stream)
        self("cuStreamSynchronize", self.stream)
        return hashlib.sha256(bytes(found)).hexdigest()[:12]
