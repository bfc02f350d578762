"""Networks of a few thousand weights, as kernels that numba makes PTX of, which the emulated GPU runs.

Pictures are float32 of (channels, height, width), several of them of (count, channels, height, width), all from 0 to 1.
"""

import warnings

import numpy as np
from numba import config, cuda

# numba needs no linker for these kernels, and says that it has none; and a picture of 32 × 32 does not fill a GPU.
warnings.filterwarnings("ignore", "cuda.bindings.nvjitlink is not available")
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
PEOPLE, KINDS, TOPICS, LETTERS = 50, 12, 8, "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
CROP, PLATE, WORDS = 16, 6, 12
THREADS = (8, 8, 1)


@cuda.jit
def scale_pixels(out, pixels):
    """From uint8 of (height, width, channels)."""
    column, row, channel = cuda.grid(3)
    if row < out.shape[1] and column < out.shape[2] and channel < out.shape[0]:
        out[channel, row, column] = np.float32(pixels[row, column, channel]) / np.float32(255)


@cuda.jit
def convolve(out, picture, weights, stride):
    """3 × 3, zeros around, and what is below 0 becomes 0."""
    column, row, to = cuda.grid(3)
    if row >= out.shape[1] or column >= out.shape[2] or to >= out.shape[0]:
        return
    total = np.float32(0)
    for channel in range(picture.shape[0]):
        for down in range(3):
            for right in range(3):
                y, x = row * stride + down - 1, column * stride + right - 1
                if 0 <= y < picture.shape[1] and 0 <= x < picture.shape[2]:
                    total += weights[to, channel, down, right] * picture[channel, y, x]
    out[to, row, column] = max(total, np.float32(0))


@cuda.jit
def average(out, picture):
    """Of each channel."""
    channel = cuda.grid(1)
    if channel < out.size:
        total = np.float32(0)
        for row in range(picture.shape[1]):
            for column in range(picture.shape[2]):
                total += picture[channel, row, column]
        out[channel] = total / np.float32(picture.shape[1] * picture.shape[2])


@cuda.jit
def multiply(out, matrix, vector):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for column in range(vector.size):
            total += matrix[row, column] * vector[column]
        out[row] = total


@cuda.jit
def enlarge(out, picture, details):
    """Twice as large, with the details of four channels each in the four pixels that one becomes."""
    column, row, channel = cuda.grid(3)
    if row < out.shape[1] and column < out.shape[2] and channel < out.shape[0]:
        at = channel * 4 + (row & 1) * 2 + (column & 1)
        value = picture[channel, row // 2, column // 2] + np.float32(0.1) * details[at, row // 2, column // 2]
        out[channel, row, column] = min(value, np.float32(1))


@cuda.jit
def cut(out, picture, top, left, side):
    """A square of the picture in the size of `out`."""
    column, row, channel = cuda.grid(3)
    if row < out.shape[1] and column < out.shape[2] and channel < out.shape[0]:
        out[channel, row, column] = picture[channel, top + row * side // out.shape[1], left + column * side // out.shape[2]]


def on_gpu(array):
    """An array as numba takes it: the next line of a function may have it from another function, or from the host."""
    return cuda.as_cuda_array(array) if hasattr(array, "__cuda_array_interface__") else cuda.to_device(np.ascontiguousarray(array))


def new(*shape):
    return cuda.device_array(shape, np.float32)


def launch(kernel, out, *arguments):
    """A thread for each element of `out`."""
    if out.ndim == 1:
        kernel[(out.size + 31) // 32, 32](out, *arguments)
    else:
        channels, height, width = out.shape
        kernel[((width + 7) // 8, (height + 7) // 8, channels), THREADS](out, *arguments)
    return out


class Network:
    """Convolutions, each of which halves the picture, the average of each channel, and a matrix."""

    def __init__(self, seed, outputs, channels=(3, 8, 16)):
        numbers = np.random.default_rng(seed)
        make = lambda *shape: cuda.to_device((numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))
        self.layers = [make(to, of, 3, 3) for of, to in zip(channels, channels[1:])]
        self.matrix = make(outputs, channels[-1])

    def features(self, picture):
        """Of (channels, height / 4, width / 4)."""
        for weights in self.layers:
            half = (weights.shape[0], picture.shape[1] // 2, picture.shape[2] // 2)
            picture = launch(convolve, new(*half), picture, weights, 2)
        return picture

    def __call__(self, picture):
        """The outputs, on the host."""
        features = self.features(on_gpu(picture))
        means = launch(average, new(features.shape[0]), features)
        return launch(multiply, new(self.matrix.shape[0]), self.matrix, means).copy_to_host()

    def each(self, pictures):
        """The outputs of several, of (count, outputs)."""
        if not pictures.shape[0]:
            return np.zeros((0, self.matrix.shape[0]), np.float32)
        pictures = on_gpu(pictures)
        return np.array([self(pictures[at]) for at in range(pictures.shape[0])])


class Reader:
    def __call__(self, pixels):
        return launch(scale_pixels, new(pixels.shape[2], *pixels.shape[:2]), cuda.to_device(np.ascontiguousarray(pixels)))


class Recogniser:
    """The nearest of the people that are known, for each face."""

    def __init__(self, seed=1):
        self.network = Network(seed, 16)
        self.known = np.random.default_rng(seed + 100).standard_normal((PEOPLE, 16)).astype(np.float32)

    def one(self, face):
        return int(np.argmax(self.known @ self.network(face)))

    def __call__(self, faces):
        return [int(np.argmax(self.known @ one)) for one in self.network.each(faces)]


class Enhancer:
    def __init__(self, seed=2):
        numbers = np.random.default_rng(seed)
        self.weights = cuda.to_device((numbers.standard_normal((12, 3, 3, 3)) / 5).astype(np.float32))

    def __call__(self, picture):
        """Twice as large; pixels, uint8 of (height, width, channels)."""
        picture = on_gpu(picture)
        channels, height, width = picture.shape
        details = launch(convolve, new(12, height, width), picture, self.weights, 1)
        larger = launch(enlarge, new(channels, 2 * height, 2 * width), picture, details).copy_to_host()
        return (larger.transpose(1, 2, 0) * 255).round().astype(np.uint8)


class Detector:
    """Looks at each quarter of a quarter: some have a vehicle, some a person, some nothing."""

    def __init__(self, seed=3):
        self.network = Network(seed, 3)

    def __call__(self, picture):
        """What was cut out of the vehicles and of the people, each of (count, channels, CROP, CROP)."""
        picture = on_gpu(picture)
        side = picture.shape[1] // 4
        places = [(row * side, column * side) for row in range(4) for column in range(4)]
        squares = [launch(cut, new(3, CROP, CROP), picture, *place, side) for place in places]
        # The middle of all that is seen in the picture is nothing in particular.
        scores = np.array([self.network(square) for square in squares])
        kinds = (scores - scores.mean(0)).argmax(1)
        return tuple(self.together([one for one, found in zip(squares, kinds) if found == kind]) for kind in (0, 1))

    def together(self, squares):
        if not squares:
            return np.zeros((0, 3, CROP, CROP), np.float32)
        all_of_them = new(len(squares), 3, CROP, CROP)
        for at, square in enumerate(squares):
            all_of_them[at].copy_to_device(square)
        return all_of_them


class Classifier:
    def __init__(self, seed=4):
        self.network = Network(seed, KINDS)

    def __call__(self, vehicles):
        return [int(np.argmax(one)) for one in self.network.each(vehicles)]


class PlateReader:
    def __init__(self, seed=5):
        self.network = Network(seed, PLATE * len(LETTERS))

    def __call__(self, vehicles):
        outputs = self.network.each(vehicles).reshape(-1, PLATE, len(LETTERS))
        return ["".join(LETTERS[at] for at in plate) for plate in outputs.argmax(2)]


class PictureEncoder:
    def __init__(self, seed=6):
        self.network = Network(seed, 1)

    def __call__(self, pictures):
        """Features of each, of (count, channels, height, width), on the GPU."""
        read = Reader()
        found = [self.network.features(read(one)) for one in pictures]
        features = new(len(found), *found[0].shape)
        for at, one in enumerate(found):
            features[at].copy_to_device(one)
        return features


class Translator:
    """Each word is made of the one before it and of what is said in all."""

    def __init__(self, seed=7):
        numbers = np.random.default_rng(seed)
        self.embedding = numbers.standard_normal((256, 16)).astype(np.float32)
        self.matrix = cuda.to_device(numbers.standard_normal((256, 32)).astype(np.float32))

    def __call__(self, text):
        """WORDS tokens, from 0 to 255."""
        said = self.embedding[np.frombuffer(text.encode(), np.uint8)].mean(0)
        tokens = [0]
        for _ in range(WORDS):
            state = cuda.to_device(np.concatenate([said, self.embedding[tokens[-1]]]))
            scores = launch(multiply, new(256), self.matrix, state).copy_to_host()
            scores[tokens] = -np.inf
            tokens.append(int(scores.argmax()))
        return tokens[1:]


class TopicClassifier:
    """Of features of pictures, and tokens."""

    def __init__(self, seed=8):
        numbers = np.random.default_rng(seed)
        self.embedding = numbers.standard_normal((256, 16)).astype(np.float32)
        self.matrix = cuda.to_device(numbers.standard_normal((TOPICS, 32)).astype(np.float32))

    def __call__(self, features, tokens):
        features = on_gpu(features)
        seen = [launch(average, new(16), features[at]).copy_to_host() for at in range(features.shape[0])]
        both = np.concatenate([np.mean(seen, 0), self.embedding[tokens].mean(0)]).astype(np.float32)
        return launch(multiply, new(TOPICS), self.matrix, cuda.to_device(both)).copy_to_host()
