"""A class whose kernels are compiled before its image is taken: no call waits for that, in no instance.

    rekindle deploy examples/02_function.py
    python examples/02_function.py

The kernel counts for each point of the plane how long z² + c stays near. numba makes PTX of it, which an NVIDIA GPU takes, and
Rekindle's emulated one.
"""

import numpy as np
import rekindle
from numba import cuda

app = rekindle.App("escape")


@cuda.jit
def escape(counts, left, top, step, limit):
    column, row = cuda.grid(2)
    if row >= counts.shape[0] or column >= counts.shape[1]:
        return
    c_real, c_imaginary = left + column * step, top - row * step
    real, imaginary, count = c_real, c_imaginary, 0
    while count < limit and real * real + imaginary * imaginary < 4:
        real, imaginary = real * real - imaginary * imaginary + c_real, 2 * real * imaginary + c_imaginary
        count += 1
    counts[row, column] = count


@app.cls(scaledown_window=30, max_containers=2)
class Plane:
    @rekindle.enter()
    def compile(self):
        """The first launch compiles the kernel and loads it: this is in the image."""
        self.part(-2.0, 1.25, 2.5 / 8, 8)

    @rekindle.method()
    def part(self, left: float, top: float, step: float, size: int, limit: int = 50) -> np.ndarray:
        counts = cuda.device_array((size, size), np.int32)
        blocks = (size + 7) // 8
        escape[(blocks, blocks), (8, 8)](counts, left, top, step, limit)
        return counts.copy_to_host()


if __name__ == "__main__":
    counts = Plane().part.remote(-2.0, 1.25, 2.5 / 32, 32)
    for row in counts[::2]:
        print("".join(" .:-=+*#%@"[min(9, count // 5)] for count in row), flush=True)
