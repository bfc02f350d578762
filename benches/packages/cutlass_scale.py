"""CuTe DSL of CUTLASS: a kernel that its compiler makes, on tensors of torch."""

import cutlass
import cutlass.cute as cute
import steps
import torch
from cutlass.cute.runtime import from_dlpack

COUNT, THREADS = 1 << 20, 256


@cute.kernel
def add_scaled(to: cute.Tensor, of: cute.Tensor, by: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    to[i] = to[i] * by + of[i]


@cute.jit
def launch(to: cute.Tensor, of: cute.Tensor, by: cutlass.Float32):
    add_scaled(to, of, by).launch(grid=(COUNT // THREADS, 1, 1), block=(THREADS, 1, 1))


torch.manual_seed(0)
total, part = torch.zeros(COUNT, device="cuda"), torch.randn(COUNT, device="cuda")
both = from_dlpack(total), from_dlpack(part)
compiled = cute.compile(launch, *both, cutlass.Float32(0.5))


def step(number):
    compiled(*both, cutlass.Float32(0.5 + number / 1000))
    return steps.digest(total.cpu().numpy())


steps.make(step)
