"""Train a small network on the GPU and print every step's loss, bit for bit.

A two-layer perceptron learns to classify points on spirals. Its kernels are CUDA C, compiled by NVRTC to PTX and given
to the driver, so that the same file runs on an NVIDIA GPU and on Rekindle's emulated one. Every sum is taken in a fixed
order: two runs, or a run and its continuation from an image, print the same lines.

    python 01_train.py [--steps N] [--pause SECONDS] [--hidden N]
"""

import argparse
import time

import numpy as np
from cuda.bindings import driver, nvrtc

KERNELS = r"""
extern "C" __global__ void forward(const float *x, const float *w, const float *b, float *y, int rows, int in, int out, int relu) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= out) return;
    float sum = b[column];
    for (int k = 0; k < in; ++k) sum = fmaf(x[row * in + k], w[k * out + column], sum);
    y[row * out + column] = relu ? fmaxf(sum, 0.f) : sum;
}
extern "C" __global__ void softmax_loss(const float *y, const int *label, float *gradient, float *loss, int rows, int out) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float top = -1e30f, sum = 0.f;
    for (int k = 0; k < out; ++k) top = fmaxf(top, y[row * out + k]);
    for (int k = 0; k < out; ++k) sum += expf(y[row * out + k] - top);
    for (int k = 0; k < out; ++k) {
        float p = expf(y[row * out + k] - top) / sum;
        gradient[row * out + k] = (p - (k == label[row])) / rows;
    }
    loss[row] = logf(sum) - (y[row * out + label[row]] - top);
}
extern "C" __global__ void backward_input(const float *gradient, const float *w, const float *y, float *result, int rows, int in, int out) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (k >= in) return;
    float sum = 0.f;
    for (int j = 0; j < out; ++j) sum = fmaf(gradient[row * out + j], w[k * out + j], sum);
    result[row * in + k] = y[row * in + k] > 0.f ? sum : 0.f;
}
extern "C" __global__ void update(const float *x, const float *gradient, float *w, float *b, float *mw, float *mb, int rows, int in, int out, float rate) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y;
    if (column >= out) return;
    float sum = 0.f, bias = 0.f;
    for (int row = 0; row < rows; ++row) {
        float g = gradient[row * out + column];
        sum = fmaf(x[row * in + k], g, sum);
        bias += g;
    }
    float m = mw[k * out + column] = 0.9f * mw[k * out + column] + sum;
    w[k * out + column] -= rate * m;
    if (k == 0) {
        float n = mb[column] = 0.9f * mb[column] + bias;
        b[column] -= rate * n;
    }
}
"""


def check(result):
    """The values of a driver or NVRTC call, or an exception that names its error."""
    code, *values = result
    if code.value:
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def compile_ptx(source: str) -> bytes:
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"train.cu", 0, [], []))
    options = [b"--gpu-architecture=compute_90", b"--fmad=false"]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code.value:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx


class Network:
    """Weights, momentum and activations in GPU memory, and the kernels that work on them."""

    def __init__(self, hidden: int, rows: int):
        check(driver.cuInit(0))
        device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(device))
        check(driver.cuCtxSetCurrent(self.context))
        module = check(driver.cuModuleLoadData(compile_ptx(KERNELS)))
        self.kernels = {n: check(driver.cuModuleGetFunction(module, n.encode())) for n in ("forward", "softmax_loss", "backward_input", "update")}
        self.rows, self.sizes = rows, [2, hidden, hidden, 3]
        random = np.random.default_rng(7)
        self.layers = []
        for fan_in, fan_out in zip(self.sizes, self.sizes[1:]):
            weights = (random.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(np.float32)
            zeros = [np.zeros(n, np.float32) for n in (fan_out, fan_in * fan_out, fan_out)]
            self.layers.append([self.upload(a) for a in (weights, *zeros)])
        self.values = [self.allocate(4 * rows * n) for n in self.sizes]
        self.gradients = [self.allocate(4 * rows * n) for n in self.sizes]
        self.labels, self.losses = self.allocate(4 * rows), self.allocate(4 * rows)

    def allocate(self, size: int):
        return check(driver.cuMemAlloc(size))

    def upload(self, array, to=None):
        to = self.allocate(array.nbytes) if to is None else to
        check(driver.cuMemcpyHtoD(to, array.ctypes.data, array.nbytes))
        return to

    def launch(self, name: str, width: int, height: int, *arguments):
        block = 64
        slots = [
            np.array([int(a)], np.uint64) if isinstance(a, driver.CUdeviceptr) else np.array([a], np.float32 if isinstance(a, float) else np.int32)
            for a in arguments
        ]
        pointers = np.array([s.ctypes.data for s in slots], np.uint64)
        check(driver.cuLaunchKernel(self.kernels[name], (width + block - 1) // block, height, 1, block, 1, 1, 0, 0, pointers.ctypes.data, 0))

    def step(self, points, labels, rate: float) -> np.float32:
        rows, layers = self.rows, self.layers
        self.upload(points, self.values[0])
        self.upload(labels, self.labels)
        for n, (w, b, _, _) in enumerate(layers):
            fan_in, fan_out = self.sizes[n], self.sizes[n + 1]
            self.launch("forward", fan_out, rows, self.values[n], w, b, self.values[n + 1], rows, fan_in, fan_out, int(n + 1 < len(layers)))
        self.launch("softmax_loss", rows, 1, self.values[-1], self.labels, self.gradients[-1], self.losses, rows, self.sizes[-1])
        for n in reversed(range(len(layers))):
            w, b, mw, mb = layers[n]
            fan_in, fan_out = self.sizes[n], self.sizes[n + 1]
            if n:
                self.launch("backward_input", fan_in, rows, self.gradients[n + 1], w, self.values[n], self.gradients[n], rows, fan_in, fan_out)
            self.launch("update", fan_out, fan_in, self.values[n], self.gradients[n + 1], w, b, mw, mb, rows, fan_in, fan_out, rate)
        losses = np.empty(rows, np.float32)
        check(driver.cuMemcpyDtoH(losses.ctypes.data, self.losses, losses.nbytes))
        return losses.mean(dtype=np.float32)


def spirals(random, rows: int):
    """Points on three interleaved spirals, and which spiral each is on."""
    label = random.integers(0, 3, rows)
    radius = random.random(rows)
    angle = 4 * radius + label * 2 * np.pi / 3 + 0.1 * random.standard_normal(rows)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), label.astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    network, random = Network(options.hidden, options.rows), np.random.default_rng(11)
    for step in range(options.steps):
        loss = network.step(*spirals(random, options.rows), 0.1)
        print(f"step {step:5} loss {loss:.6f} {float(loss).hex()}", flush=True)
        time.sleep(options.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
