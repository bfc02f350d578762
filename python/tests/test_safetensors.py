"""Files of safetensors, whose tensors are views of one array on the GPU."""

import json
import struct

import numpy
import pytest
import rekindle as package
from nodes import node_with
from rekindle.safetensors import Index
from store import Store

APP = """
import numpy
from numba import cuda

@cuda.jit
def add(numbers, total):
    at = cuda.grid(1)
    if at < numbers.size:
        cuda.atomic.add(total, 0, numbers[at])

@app.cls(gpu="emulated", sleep_window=0, data={{"weights": rekindle.Data({url!r}, format="safetensors")}})
class Model:
    @rekindle.enter()
    def compile(self):
        add[1, 32](cuda.to_device(numpy.zeros(4, "int32")), cuda.to_device(numpy.zeros(1, "int32")))
        cuda.synchronize()

    @rekindle.method()
    def describe(self):
        return {{name: (one.dtype, one.shape) for name, one in self.weights.load().items()}}

    @rekindle.method()
    def total(self, name):
        total = cuda.to_device(numpy.zeros(1, "int32"))
        numbers = cuda.as_cuda_array(self.weights.load()[name]).ravel()
        add[(numbers.size + 255) // 256, 256](numbers, total)
        return int(total.copy_to_host()[0])

    @rekindle.method()
    def arrays(self):
        held = self.weights.load()
        # The file stays for as long as one of its tensors.
        return {{name: one.copy_to_host() for name, one in held.items() if one.dtype != "bfloat16"}}
"""


def file_of(tensors, **metadata):
    """`{name: (dtype, shape, bytes)}`, in the format."""
    rows, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        rows[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def model():
    with Store() as store, node_with() as node:
        node.deployer.app("models", APP.format(url=f"{store.url}/model.safetensors"))
        yield store, package.Cls.from_name("models", "Model")()


def test_tensors_are_views_of_one_file_on_the_gpu(model):
    store, one = model
    numbers, halves = numpy.arange(6000, dtype="int32").reshape(60, 100), numpy.arange(12, dtype="float16")
    tensors = {
        "layers.0.weight": ("I32", [60, 100], numbers.tobytes()),
        "halves": ("F16", [3, 4], halves.tobytes()),
        "brain": ("BF16", [2], b"\0" * 4),
        "nothing": ("F32", [0, 7], b""),
        "one": ("F64", [], struct.pack("<d", 2.5)),
    }
    # A header of more than one piece.
    store.objects["/model.safetensors"] = file_of(tensors, notes="x" * 100_000)
    assert one.describe.remote() == {
        "layers.0.weight": ("int32", (60, 100)),
        "halves": ("float16", (3, 4)),
        "brain": ("bfloat16", (2,)),
        "nothing": ("float32", (0, 7)),
        "one": ("float64", ()),
    }
    assert one.total.remote("layers.0.weight") == numbers.sum()
    arrays = one.arrays.remote()
    assert numpy.array_equal(arrays["layers.0.weight"], numbers) and numpy.array_equal(arrays["halves"], halves.reshape(3, 4))
    assert arrays["nothing"].shape == (0, 7) and arrays["one"] == 2.5


def test_what_is_no_such_file_is_refused_in_a_sentence(model):
    store, one = model
    good = file_of({"a": ("I32", [2], b"\0" * 8)})
    for content, words in (
        (b"\xff" * 100, "its first bytes say that its header has"),
        (struct.pack("<Q", 8) + b"{nothing", "its header cannot be read"),
        (file_of({"a": ("F8_E4M3", [2], b"\0\0")}), "its tensor 'a' has the dtype 'F8_E4M3'"),
        (file_of({"a": ("I32", [3], b"\0" * 8)}), "its tensor 'a' is said to have the bytes 0 to 8, which it cannot"),
        (good[:-1], "which it cannot"),
    ):
        store.objects["/model.safetensors"] = content
        with pytest.raises(package.DataSizeError, match=f"is no file of safetensors: {words}|{words}"):
            one.describe.remote()
    del store.objects["/model.safetensors"]
    with pytest.raises(package.DataNotFoundError):
        one.describe.remote()
    store.objects["/model.safetensors"] = good
    assert one.describe.remote() == {"a": ("int32", (2,))}


def header(text):
    return struct.pack("<Q", len(text)) + text


def row(dtype="I32", shape=(2,), offsets=(0, 8)):
    return header(json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode())


def test_headers_of_what_is_no_tensor_are_refused_in_a_sentence():
    url, total = "s3://b/k", 10_000
    assert Index.of(url, total, row()).tensors == {"a": ("int32", (2,), len(row()))}
    for wrong in (
        header(b"[]"),
        header(b'{"a": 1}'),
        header(b'{"a": {"dtype": "I32", "shape": [2]}}'),
        header(b'{"a": ' + b"[" * 100_000),
        header(b"\xff\xfe"),
        row(dtype="I7"),
        row(dtype=[]),
        row(shape=["2"]),
        row(shape=[2.5]),
        row(shape=[float("inf")]),
        row(shape=2),
        row(shape=[-1, -2]),
        row(shape=[1 << 70]),
        row(offsets=[8, 0]),
        row(offsets=[-8, 0]),
        row(offsets=[0, 4]),
        row(offsets=[0.0, 8.0]),
        row(offsets=[total, total + 8]),
        row(offsets=[0, 8, 16]),
    ):
        with pytest.raises(package.DataSizeError, match=f"^{url} is no file of safetensors: .*; put one there, or declare dtype and shape$"):
            Index.of(url, total, wrong)


def test_declarations_that_cannot_be_are_refused():
    for more in ({"dtype": "int8"}, {"shape": 1}, {"mode": "rw"}):
        with pytest.raises(package.DeclarationError, match="says itself what is in it"):
            package.Data("s3://b/k", format="safetensors", **more)
    with pytest.raises(package.DeclarationError, match="format is 'npz'"):
        package.Data("s3://b/k", format="npz")
    index = Index.of("s3://b/k", 100, file_of({}))
    assert index.tensors == {}
