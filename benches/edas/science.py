"""Functions that need no framework: three kernels of science, and a small network that stands for a model.

The kernels are those of Parboil that EDAS has among its functions (Stratton et al., IMPACT-12-01, 2012): lattice Boltzmann
(`lbm`), Q of a reconstruction from non-uniform samples in magnetic resonance imaging (`mri-q`), and the angular correlation of
points in the sky (`tpacf`); written anew, on random data.
"""

import ctypes

import device
import numpy

THREADS = 128
i32, f32 = ctypes.c_int, ctypes.c_float


def blocks(count):
    return -(-count // THREADS)


class Kernels:
    """What a function is to the benchmark. `code` is compiled beforehand; nothing but `make` is done on the host alone.

    `tensors` are those of its object: `[(name, dtype, shape), ...]`, and `make(name, chance)` gives the contents of one.
    """

    # How far an answer may be from the reference, as a part of the mean of its absolute numbers.
    tolerance = 1e-4

    def __init__(self, code=None, plan=None):
        self.code, self.plan = code, plan
        self.base = self.array = None
        self.scratch = {}

    def open(self):
        """A GPU context, and the code in it."""
        device.open_context()
        self.module = device.Module(self.code)

    def take_host(self, data):
        """The object, bytes in the host's memory, is copied to the GPU."""
        self.base = self.mine = device.allocate(data.nbytes)
        device.to_gpu(self.base, data)

    def take_gpu(self, array):
        """The object lies on the GPU: an array of its bytes, which is kept."""
        self.array, self.base, self.mine = array, array.address, None

    def rehearse(self, size):
        """Computes once with nothing but zeros, so that all is there but the data."""
        self.base = self.mine = device.allocate(size)
        device.zero(self.base, size)
        self.compute(0)
        self.forget()

    def forget(self):
        """The GPU's memory is given back, but for the context."""
        for address in [*self.scratch.values(), *([self.mine] if self.mine else [])]:
            device.free(address)
        self.scratch, self.base, self.array = {}, None, None

    def at(self, name):
        return self.base + self.plan[name].begin

    def room(self, name, size):
        """Memory of the function's own, kept for the next request."""
        if name not in self.scratch:
            self.scratch[name] = device.allocate(size)
        return self.scratch[name]

    def given(self, name, array):
        """What comes with the request, on the GPU."""
        array = numpy.ascontiguousarray(array)
        address = self.room(name, array.nbytes)
        device.to_gpu(address, array)
        return address

    def extra_bytes(self):
        """GPU memory beside the object and the context, after a request."""
        return 0


def digest(values):
    values = numpy.asarray(values, "float64").ravel()
    return [float(values.mean()), float(numpy.abs(values).mean()), float(values[0]), float(values[-1])]


class Dense(Kernels):
    """Layers of a square matrix each: it stands for a model where there is no GPU for one."""

    def __init__(self, width, layers, *rest):
        super().__init__(*rest)
        self.width, self.layers = width, layers
        self.tensors = [(f"layer.{number}", "F32", (width, width)) for number in range(layers)]

    def make(self, name, chance):
        return chance.normal(0, (2 / self.width) ** 0.5, (self.width, self.width)).astype("float32")

    def compute(self, request):
        x = self.given("x", numpy.random.default_rng(request).normal(size=self.width).astype("float32"))
        y = self.room("y", 4 * self.width)
        for number in range(self.layers):
            self.module.launch("dense", blocks(self.width), THREADS, self.at(f"layer.{number}"), x, y, i32(self.width))
            x, y = y, x
        return digest(device.to_host(x, self.width))


class Lattice(Kernels):
    """Flow through a random porous body. A request says how viscous."""

    def __init__(self, side, steps, *rest):
        super().__init__(*rest)
        self.side, self.steps, self.cells = side, steps, side**3
        self.tensors = [("densities", "F32", (19, side, side, side)), ("solid", "U8", (side, side, side))]

    def make(self, name, chance):
        if name == "solid":
            return (chance.random(self.cells) < 0.1).astype("uint8")
        shares = numpy.repeat([1 / 3, 1 / 18, 1 / 36], [1, 6, 12]).astype("float32")
        return shares[:, None] * chance.uniform(0.8, 1.2, (19, self.cells)).astype("float32")

    def compute(self, request):
        size = 4 * 19 * self.cells
        source, targets = self.at("densities"), [self.room("a", size), self.room("b", size)]
        for step in range(self.steps):
            target = targets[step % 2]
            relaxation = f32(0.6 + 0.2 * request)
            self.module.launch("lattice", blocks(self.cells), THREADS, source, self.at("solid"), target, i32(self.side), relaxation)
            source = target
        return digest(device.to_host(source, (19, self.cells))[1:7])

    def extra_bytes(self):
        return 2 * 4 * 19 * self.cells


class Fourier(Kernels):
    """The data are points; a request brings its samples."""

    def __init__(self, points, count, *rest):
        super().__init__(*rest)
        self.points, self.count = points, count
        self.tensors = [("points", "F32", (3, points))]

    def make(self, name, chance):
        return chance.random((3, self.points)).astype("float32")

    def compute(self, request):
        samples = self.given("samples", numpy.random.default_rng(request).uniform(-4, 4, (4, self.count)).astype("float32"))
        real, imaginary = self.room("real", 4 * self.points), self.room("imaginary", 4 * self.points)
        sizes = i32(self.points), i32(self.count)
        self.module.launch("fourier", blocks(self.points), THREADS, self.at("points"), samples, real, imaginary, *sizes)
        return digest(numpy.hypot(device.to_host(real, self.points), device.to_host(imaginary, self.points)))

    def extra_bytes(self):
        return 8 * self.points


class Pairs(Kernels):
    """One set of observed points, and several of random ones. A request says up to which angle, and with which of them it is compared."""

    bins = 20

    def __init__(self, points, sets, *rest):
        super().__init__(*rest)
        self.points, self.sets = points, sets
        self.tensors = [("observed", "F32", (3, points)), *((f"random.{number}", "F32", (3, points)) for number in range(sets))]

    def make(self, name, chance):
        places = chance.normal(size=(3, self.points))
        if name == "observed":
            places[2] += 0.5
        return (places / numpy.linalg.norm(places, axis=0)).astype("float32")

    def compute(self, request):
        edges = self.given("edges", numpy.cos(numpy.linspace(0, numpy.pi * (1 - request / 10), self.bins + 1))[1:].astype("float32"))
        counts, size = self.room("counts", 4 * 3 * self.bins), i32(self.points)
        device.zero(counts, 4 * 3 * self.bins)
        random = [self.at(f"random.{(request + number) % self.sets}") for number in range(self.sets // 2)]
        kinds = [[(self.at("observed"), self.at("observed"))], [(self.at("observed"), one) for one in random], [(one, one) for one in random]]
        for kind, sets in enumerate(kinds):
            for one, other in sets:
                self.module.launch("pairs", blocks(self.points), THREADS, one, other, edges, counts + 4 * self.bins * kind, size, i32(self.bins))
        found = device.to_host(counts, (3, self.bins), "uint32").astype("float64")
        # The estimator of Landy and Szalay (1993), by bins.
        both = numpy.maximum(found[2] / len(random), 1)
        return digest((found[0] - 2 * found[1] / len(random) + found[2] / len(random)) / both)
