"""tilelang: a matrix product by the tensor cores, compiled by its own compiler and nvcc."""

import steps
import tilelang
import tilelang.language as T
import torch

SIZE, TILE, DEPTH = 1024, 128, 32


@tilelang.jit(out_idx=[-1])
def product(size, tile, depth):
    @T.prim_func
    def main(a: T.Tensor((size, size), "float16"), b: T.Tensor((size, size), "float16"), c: T.Tensor((size, size), "float16")):
        with T.Kernel(size // tile, size // tile, threads=128) as (column, row):
            left, right = T.alloc_shared((tile, depth), "float16"), T.alloc_shared((depth, tile), "float16")
            sums = T.alloc_fragment((tile, tile), "float32")
            T.clear(sums)
            for k in T.Pipelined(size // depth, num_stages=3):
                T.copy(a[row * tile, k * depth], left)
                T.copy(b[k * depth, column * tile], right)
                T.gemm(left, right, sums)
            T.copy(sums, c[row * tile, column * tile])

    return main


multiply = product(SIZE, TILE, DEPTH)
torch.manual_seed(0)
x = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.half)
turn = torch.linalg.qr(torch.randn(SIZE, SIZE, device="cuda"))[0].half().contiguous()


def step(number):
    global x
    x = multiply(x, turn)
    return steps.digest(x.cpu().numpy())


steps.make(step)
