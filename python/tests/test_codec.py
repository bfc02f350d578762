"""Messages: what goes in comes out, and what is damaged is refused."""

import ast
import datetime
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.codec import decode, encode
from rekindle.errors import RemoteError, SerializationError
from rekindle.raised import describe, rebuild

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes().map(lambda time: time.replace(fold=0))
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    ATOMS | st.frozensets(KEYS) | st.sets(KEYS),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)
DTYPES = ["?", "i1", ">u2", "<i8", "f2", "<f4", ">f8", "c8", "S3", "U2", "M8[ms]", "m8[s]", [("a", "<i4"), ("b", ">f8", (2,))]]


def kinds(value):
    """Types all the way down; of a number also its sign."""
    if isinstance(value, list | tuple):
        return type(value), [kinds(one) for one in value]
    if isinstance(value, dict):
        return type(value), {key: kinds(one) for key, one in value.items()}
    return type(value), None if isinstance(value, set | frozenset) else repr(value)


def through(value):
    return decode(b"".join(encode(value)))


@given(VALUES)
@settings(deadline=None)
def test_values_come_out_as_they_went_in(value):
    same = through(value)
    assert same == value and kinds(same) == kinds(value)


def test_types_are_not_parsed_by_two_threads_at_once(monkeypatch):
    messages = [b"".join(encode(numpy.zeros(2, [(f"field{number}", "<i4")]))) for number in range(8)]
    parse, under_way, most = ast.literal_eval, [], []

    def literal_eval(text):
        under_way.append(text)
        most.append(len(under_way))
        time.sleep(0.005)
        under_way.pop()
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", literal_eval)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(decode, messages * 2))
    assert [array.dtype.names for array in found[:8]] == [(f"field{number}",) for number in range(8)]
    assert most and max(most) == 1


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans(), st.booleans())
@settings(deadline=None)
def test_arrays_come_out_as_they_went_in(dtype, shape, is_turned, is_sparse):
    size = math.prod(shape)
    array = numpy.zeros(size, dtype)
    array.view(numpy.uint8)[:] = numpy.arange(array.nbytes) % 2
    array = array.reshape(shape)
    array = array.T if is_turned else array
    array = array[::2] if is_sparse and array.ndim else array
    same, number = through([array, 7])
    assert number == 7 and same.dtype == array.dtype and same.shape == array.shape
    assert same.tobytes() == array.tobytes()


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_no_bytes_are_taken_for_a_message_that_are_none(data):
    with pytest.raises(SerializationError):
        decode(data)


@given(st.data())
@settings(deadline=None)
def test_a_message_that_was_changed_is_a_message_or_is_refused(data):
    message = bytearray(b"".join(encode([1, (2, "x"), numpy.arange(5), {3}, datetime.datetime(2026, 1, 1)])))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(message[: data.draw(st.integers(0, len(message)))])
    except SerializationError as error:
        assert "\n" not in str(error)


def test_arrays_are_not_copied():
    array = numpy.arange(1000)
    assert numpy.shares_memory(array, numpy.frombuffer(encode([array])[-1], array.dtype))
    message = bytearray(b"".join(encode([array, "text", array + 1])))
    first, _, second = decode(message)
    second[0] = 77
    first[0] = 5
    whole = numpy.frombuffer(message, numpy.uint8)
    assert numpy.shares_memory(first, whole) and numpy.shares_memory(second, whole)
    assert second.ctypes.data % 8 == 0 and decode(message)[2][0] == 77
    with pytest.raises(ValueError, match="read-only"):
        decode(bytes(message))[0][0] = 1


class Tensor:
    """As libraries with arrays on a GPU have them: a copy on the host, or DLPack."""

    def __init__(self, array):
        self.array = array


class Numba(Tensor):
    def copy_to_host(self):
        return self.array


class Cupy(Tensor):
    __cuda_array_interface__ = property(lambda self: {})

    def get(self):
        return self.array


class Other(Tensor):
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("library", [Numba, Cupy, Other])
def test_arrays_of_other_libraries_come_as_numpy_s(library):
    numpy.testing.assert_array_equal(through(library(numpy.arange(6.0).reshape(2, 3))), numpy.arange(6.0).reshape(2, 3))


def test_what_cannot_be_sent_is_named():
    endless = []
    endless.append(endless)
    for value, named in (
        (object(), "builtins.object"),
        ([{"a": print}], "builtin_function"),
        (numpy.array([object()]), "type object"),
        (endless, "recursion"),
    ):
        with pytest.raises(SerializationError, match=named):
            encode(value)
    with pytest.raises(SerializationError, match=r"begin with b'GET / HT'"):
        decode(b"GET / HTTP/1.1")


class Plain(Exception):
    pass


class Demanding(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")
        self.a = a


class Holding(Exception):
    def __init__(self, thing):
        super().__init__("held", thing)


def raised(error):
    try:
        raise error
    except Exception as caught:
        return rebuild(b"".join(describe(caught)))


def test_exceptions_come_as_what_they_were():
    for error in (
        Plain("a", 1),
        Demanding("a", "b"),
        KeyError("k"),
        OSError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ):
        same = raised(error)
        assert type(same) is type(error) and same.args == error.args and str(same) == str(error)
        assert same.__notes__[0].startswith("Traceback in the instance:\n") and "raise error" in same.__notes__[0]
    assert raised(Demanding("a", "b")).a == "a" and raised(OSError(2, "No", "name")).filename == "name"
    unknown = raised(Holding(object()))
    assert type(unknown) is RemoteError and "Holding: ('held', <object" in str(unknown) and "raise error" in unknown.traceback

    class Local(Exception):
        pass

    assert type(raised(Local("x"))) is RemoteError
