"""What can be handed on: where an array lies and what it is, and references as they are sent."""

import pickle
from types import SimpleNamespace

import pytest
from rekindle import dlpack
from rekindle.codec import decode, encode
from rekindle.device_array import DeviceArray
from rekindle.errors import SerializationError
from rekindle.exchange import Ref, check_order, find

ADDRESS = 0x600000200000


@pytest.fixture
def array(monkeypatch):
    monkeypatch.setattr("rekindle.driver.free", lambda _address: None)
    return DeviceArray("an array", "bfloat16", (3, 5), ADDRESS, 0)


def test_tensors_of_dlpack_are_found_where_they_lie(array):
    view = dlpack.view(array.__dlpack__())
    assert (view.address, view.device, view.kind, view.shape) == (ADDRESS, (dlpack.CUDA, 0), (4, 16), (3, 5))
    tensor = SimpleNamespace(__dlpack_device__=array.__dlpack_device__, __dlpack__=array.__dlpack__)
    for one in (array, tensor):
        found = find(one)
        assert (found.address, found.dtype, found.shape, found.on_gpu) == (ADDRESS, "bfloat16", (3, 5), True)


def test_arrays_of_the_cuda_array_interface_are_found_or_refused():
    interface = {"shape": (2, 3), "typestr": "<c8", "data": (ADDRESS, False), "version": 3, "strides": (24, 8)}
    found = find(SimpleNamespace(__cuda_array_interface__=interface))
    assert (found.address, found.dtype, found.shape) == (ADDRESS, "complex64", (2, 3))
    for change, words in (({"typestr": ">c8"}, "of type >c8"), ({"strides": (8, 16)}, "put a contiguous copy")):
        with pytest.raises(SerializationError, match=words):
            find(SimpleNamespace(__cuda_array_interface__=interface | change))


def test_strides_of_sizes_one_and_of_nothing_do_not_matter():
    check_order((1, 4, 1), (99, 1, 7), 1)
    check_order((0, 4), (1, 1), 1)


def test_references_are_sent_as_they_are():
    ref = Ref("0" * 32, "float16", (2, 3), given=True)
    assert ref.nbytes == 12
    assert decode(b"".join(encode({"refs": [ref]}))) == {"refs": [ref]} and pickle.loads(pickle.dumps(ref)) == ref
