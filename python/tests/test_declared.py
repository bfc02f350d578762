"""What is declared of data, and how it is given to libraries; no GPU is needed."""

import ctypes

import pytest
import rekindle
from rekindle import dlpack
from rekindle.data import LoadedArray
from rekindle.device_array import DTYPES
from rekindle.limits import Limits

pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@pytest.fixture
def array(monkeypatch):
    freed = []
    monkeypatch.setattr("rekindle.driver.free", freed.append)
    one = LoadedArray(rekindle.Data("s3://bucket/key", dtype="float16", shape=(3, 5)), 0x600000200000, 1)
    return one, freed


def test_objects_of_clouds_of_http_and_files_are_declared_alike():
    clouds = ("s3://bucket/key", "gs://bucket/key", "az://container/key", "abfss://container@account.dfs.core.windows.net/key")
    for url in (*clouds, "http://host/key", "https://host/key", "file:///key"):
        assert rekindle.Data(url, dtype="int8", shape=1).url == url


def test_declarations_that_cannot_be_are_refused():
    url = "s3://bucket/key"
    for arguments, words in (
        (("ftp://host/key", "int8", 1), "names no data; give s3://BUCKET/KEY, gs://"),
        (("bucket/key", "int8", 1), "names no data; give s3://"),
        (("s3://", "int8", 1), "names no data"),
        ((url, "int7", 1), "dtype is 'int7'; give one of int8"),
        ((url, "int8", ()), "shape is"),
        ((url, "int8", (2, 0)), "whole numbers above 0"),
    ):
        with pytest.raises(rekindle.DeclarationError, match=words):
            rekindle.Data(arguments[0], dtype=arguments[1], shape=arguments[2])
    with pytest.raises(rekindle.DeclarationError, match="mode is 'w'; give 'ro'"):
        rekindle.Data(url, dtype="int8", shape=1, mode="w")
    with pytest.raises(rekindle.DeclarationError, match="create is for data that is dumped"):
        rekindle.Data(url, dtype="int8", shape=1, create=True)
    with pytest.raises(rekindle.DeclarationError, match="declare it with mode='rw'"):
        rekindle.Data(url, dtype="int8", shape=1).dump()
    app = rekindle.App("declared")
    for data, words in (
        ({"method": rekindle.Data(url, dtype="int8", shape=1)}, "the name of no other attribute"),
        ({"x": url}, "give rekindle.Data"),
    ):
        with pytest.raises(rekindle.DeclarationError, match=words):

            @app.cls(data=data)
            class _Model:
                @rekindle.method()
                def method(self): ...


def test_parts_of_a_shared_context_are_passed_on_and_checked():
    declared = Limits.declared({"share": "us", "link_weight": 30, "sm_share": 25, "share_memory": "lazy"}, "f")
    options = declared.serve_options()
    for option, value in (("--share", "us"), ("--link-weight", "30"), ("--sm-share", "25"), ("--share-memory", "lazy")):
        assert options[options.index(option) + 1] == value
    flexible = Limits.declared({"share": "us", "sm_share": 10, "sm_weight": 30, "sm_most": 50}, "f").serve_options()
    assert words(flexible, "--sm-share", "--sm-weight", "--sm-most") == ("10", "30", "50")
    # What an earlier deployment said is over.
    assert words(Limits.declared({"share": "us"}, "f").serve_options(), "--sm-weight", "--sm-most") == ("none", "none")
    assert words(Limits.declared({"share": "us"}, "f").serve_options(), "--link-weight", "--sm-share", "--share-memory") == ("10", "none", "eager")
    assert words(Limits.declared({}, "f").serve_options(), "--share", "--link-weight") == ("none", None)
    for wrong, sentence in (
        ({"share": "us", "link_weight": 101}, "link_weight is 101; give a whole number from 1 to 100"),
        ({"share": "us", "sm_share": 0.5}, "sm_share is 0.5; give"),
        ({"sm_share": 25}, "sm_share is for instances that share GPU contexts"),
        ({"sm_most": 25}, "sm_most is for instances that share GPU contexts"),
        ({"share": "us", "sm_weight": 0}, "sm_weight is 0; give a whole number from 1 to 100"),
        ({"share": "us", "sm_share": 50, "sm_most": 25}, "sm_most is 25, and sm_share, which is the least, 50"),
        ({"share": "us", "share_memory": "late"}, "share_memory is 'late'; give 'eager' or 'lazy'"),
        ({"share_memory": "lazy"}, "share_memory is for instances that share GPU contexts"),
        ({"link_weight": 1}, r"link_weight is for instances that share GPU contexts; give a name \(share\) too"),
    ):
        with pytest.raises(rekindle.DeclarationError, match=sentence):
            Limits.declared(wrong, "f")


def words(options, *names):
    """What is said of each; None if nothing is."""
    return tuple(options[options.index(name) + 1] if name in options else None for name in names)


def test_functions_of_an_app_share_contexts_unless_something_else_is_said():
    app = rekindle.App("sharing")

    def limits(name, **options):
        return app.declare(name, lambda: None, options).limits

    shared = limits("shared")
    assert words(shared.run_options(), "--share") == words(shared.serve_options(), "--share") == ("app:sharing",)
    for number, (options, share, window) in enumerate(
        (
            ({}, "app:sharing", 0),
            ({"share": None, "sleep_window": 0, "base": ""}, "app:sharing", 0),
            ({"variants": 2, "link_weight": 5, "sm_share": 10, "share_memory": "lazy", "gpu": "nvidia:0,1"}, "app:sharing", 0),
            ({"share": "us"}, "us", 300),
            ({"share": "app:other", "sleep_window": 5}, "app:other", 5),
            ({"share": False}, None, 300),
            ({"sleep_window": 600}, None, 600),
            ({"sleep_stages": {"host": 5}}, None, 300),
            ({"base": "torch"}, None, 300),
            ({"share": "us", "base": "torch"}, "us", 300),
        )
    ):
        found = limits(f"f{number}", **options)
        assert (found.share, found.sleep_window) == (share, window), options
        assert ("--share" in found.run_options()) == (share is not None)
    for number, (options, sentence) in enumerate(
        (
            ({"share": True}, "share is True; give a name, or False for a context of its own"),
            ({"share": ""}, "share is ''; give a name"),
            ({"share": "none"}, "share is 'none'; give a name"),
            ({"share": False, "sm_share": 10}, "sm_share is for instances that share GPU contexts; leave out share=False"),
            (
                {"sleep_window": 9, "variants": 2},
                "variants is for instances that share GPU contexts; leave out sleep_window, which gives it one of its own",
            ),
            ({"base": "torch", "link_weight": 2}, "link_weight is for instances .*; leave out base, which"),
            ({"sleep_window": "9"}, "sleep_window is '9'; give a number of seconds"),
            ({"sleep_stages": {"moon": 9}}, "sleep_stages is {'moon': 9}; give seconds by level: gpu, host, disk"),
            ({"sleep_stages": 9}, "sleep_stages is 9; give seconds by level"),
            ({"sleep_stages": {"gpu": "9"}}, "sleep_stages has '9' for 'gpu'; give a number of seconds"),
            ({"sleep_stages": {"gpu": 0}}, "sleep_stages has no level with an interval above 0"),
            ({"sleep_stages": {"context": 9}}, "sleep_stages has no level with an interval above 0"),
            ({"sleep_stages": {"gpu": 9}, "sleep_window": 5}, "sleep_stages and sleep_window are both given; give one of them"),
            ({"sleep_stages": {"gpu": 9}, "share": "us"}, "sleep_stages is for instances that sleep, and those that share .* do not"),
        )
    ):
        with pytest.raises(rekindle.DeclarationError, match=f"^wrong{number}: {sentence}"):
            limits(f"wrong{number}", **options)


def test_stages_of_sleep_are_served_in_their_order():
    app = rekindle.App("stages")

    def served(name, **options):
        return app.declare(name, lambda: None, options).limits.serve_options()

    staged = served("staged", sleep_stages={"disk": 3600, "gpu": 0.5, "host": 0}, scaledown_window=30)
    assert words(staged, "--stages") == ("gpu=500ms,host=0ms,disk=3600000ms",) and "--idle-end" not in staged
    kept = served("kept", sleep_stages={"host": 600, "context": 30})
    assert words(kept, "--stages") == ("context=30000ms,host=600000ms",)
    plain = served("plain", share=False)
    assert words(plain, "--idle-end") == ("300000ms",) and "--stages" not in plain


def test_outside_of_a_sandbox_data_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("rekindle.driver.LIBRARY", "libcuda-that-is-not.so")
    with pytest.raises(rekindle.DataUnavailableError, match="by programs in sandboxes alone"):
        rekindle.Data("s3://bucket/key", dtype="int8", shape=1).load()


def test_arrays_have_the_interfaces_of_libraries(array):
    one, _ = array
    interface = one.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["data"][0], interface["version"]) == ((3, 5), "<f2", one.address, 3)
    assert one.__dlpack_device__() == (2, 1) and one.nbytes == 30
    with pytest.raises(BufferError):
        one.__dlpack__(copy=True)
    odd = LoadedArray(rekindle.Data("s3://bucket/key", dtype="bfloat16", shape=2), one.address, 0)
    assert not hasattr(odd, "__cuda_array_interface__")
    for name, (_, bits, letter) in DTYPES.items():
        assert rekindle.Data("s3://b/k", dtype=name, shape=3).nbytes * 8 == 3 * bits, name
        assert letter or name == "bfloat16"


def test_whoever_has_a_dlpack_tensor_holds_the_array(array):
    one, freed = array
    capsule = one.__dlpack__(stream=1, max_version=(1, 0))
    managed = dlpack.Managed.from_address(pointer(capsule, b"dltensor"))
    tensor = managed.tensor
    assert (tensor.data, tensor.dimensions, list(tensor.shape[:2]), tensor.strides) == (one.address, 2, [3, 5], None)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes, tensor.device.kind) == (2, 16, 1, 2)
    place = ctypes.addressof(managed)
    assert dlpack.held[place][2] is one and not freed
    managed.deleter(ctypes.byref(managed))
    assert place not in dlpack.held


def test_a_capsule_that_nobody_takes_lets_go_of_the_array(array):
    one, _ = array
    before = set(dlpack.held)
    capsule = one.__dlpack__()
    assert len(set(dlpack.held) - before) == 1
    del capsule
    assert set(dlpack.held) == before
    taken = one.__dlpack__()
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(taken), b"used_dltensor")
    del taken
    (place,) = set(dlpack.held) - before
    managed = dlpack.Managed.from_address(place)
    managed.deleter(ctypes.byref(managed))
    assert set(dlpack.held) == before


def test_what_the_driver_takes_has_nothing_of_a_worker():
    assert Limits.declared({"mode": "driver"}, "F").run_options() == ["--mode", "driver"]
    assert (
        "--idle-end" in (words := Limits.declared({"mode": "driver"}, "F", "app:a").serve_options()) and words[words.index("--idle-end") + 1] == "0ms"
    )
    for options, words in (
        ({"mode": "sandbox"}, "mode is 'sandbox'; give 'driver' or None"),
        ({"mode": "driver", "share": "one"}, "share is 'one', which there is not in mode driver"),
        ({"mode": "driver", "base": "torch"}, "base is 'torch', which there is not in mode driver"),
        ({"mode": "driver", "sleep_window": 5}, "sleep_window is 5, which there is not in mode driver"),
        ({"mode": "driver", "link_weight": 5}, "link_weight is for instances that share GPU contexts; leave out mode"),
    ):
        with pytest.raises(rekindle.DeclarationError, match=words):
            Limits.declared(options, "F")
    app = rekindle.App("driven")
    with pytest.raises(rekindle.DeclarationError, match="which there is not in mode driver; load weights in @enter"):

        @app.cls(mode="driver", data={"weights": rekindle.Data("s3://bucket/key", dtype="int8", shape=1)})
        class Held:
            @rekindle.method()
            def call(self):
                return 1
