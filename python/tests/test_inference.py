"""The Open Inference Protocol, of classes with kernels of numba's: in JSON, as bytes, in batches, and what is refused."""

import http.client
import json
import threading

import numpy
import pytest
import rekindle as package
from conftest import Deployer, begun
from harness import PATIENCE, CommandError

SOURCE = """
import numpy
from numba import cuda

@cuda.jit
def mix(a, b, total):
    at = cuda.grid(1)
    if at < a.size:
        total[at] = 2 * a[at] + b[at]

PAIR = {"a": rekindle.TensorSpec("float32", (None, 3)), "b": rekindle.TensorSpec("float32", (None, 3))}

@app.cls(gpu="emulated", concurrency=8)
class Whole:
    @rekindle.enter()
    def load(self):
        self.mixed(numpy.zeros((1, 3), "float32"), numpy.zeros((1, 3), "float32"))

    @rekindle.method()
    def mixed(self, a, b):
        if a[0, 0] == 666:
            raise ArithmeticError("no such number")
        total = cuda.to_device(numpy.zeros(a.size, "float32"))
        mix[1 + a.size // 64, 64](cuda.to_device(a.reshape(-1)), cuda.to_device(b.reshape(-1)), total)
        found = total.copy_to_host().reshape(a.shape)
        return found, found.sum()

    @rekindle.asgi_app()
    def serve(self):
        outputs = {"mixed": PAIR["a"], "sum": rekindle.TensorSpec("float32", ())}
        return rekindle.infer_app(self.mixed, inputs=PAIR, outputs=outputs)


@app.cls(gpu="emulated", concurrency=8)
class Batches:
    @rekindle.batched(max_batch_size=4, wait_ms=1000)
    def mixed(self, a, b):
        rows = numpy.stack(a)
        total = cuda.to_device(numpy.zeros(rows.size, "float32"))
        mix[1 + rows.size // 64, 64](cuda.to_device(rows.reshape(-1)), cuda.to_device(numpy.stack(b).reshape(-1)), total)
        return [{"mixed": row, "beside": len(rows)} for row in total.copy_to_host().reshape(rows.shape)]

    @rekindle.asgi_app()
    def serve(self):
        outputs = {"beside": rekindle.TensorSpec("int64", (None,)), "mixed": PAIR["a"]}
        return rekindle.infer_app(self.mixed, inputs=PAIR, outputs=outputs, name="mixer")


ONE = rekindle.TensorSpec("float32", (None, 2))

@app.cls(gpu="emulated", concurrency=4)
class Single:
    @rekindle.batched(max_batch_size=4, wait_ms=1)
    def twice(self, x):
        # The only output, alone or in a tuple.
        return [(2 * row,) if row[0] else 2 * row for row in x]

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.infer_app(self.twice, inputs={"x": ONE}, outputs={"y": ONE})


@app.cls(gpu="emulated", timeout=0.3)
class Slow:
    @rekindle.method()
    async def wait(self, x):
        import asyncio
        await asyncio.sleep(float(x[0, 0]))
        return x

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.infer_app(self.wait, inputs={"x": ONE}, outputs={"y": ONE})


NAMES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16", "bytes"]

@app.cls(gpu="emulated")
class Types:
    @rekindle.method()
    def same(self, *arrays):
        return arrays

    @rekindle.asgi_app()
    def serve(self):
        specs = {name: rekindle.TensorSpec(name, (None,)) for name in NAMES}
        return rekindle.infer_app(self.same, inputs=specs, outputs=specs, name="types")
"""
DATATYPES = dict(
    zip(
        ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16", "bytes"],
        ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES"],
        strict=True,
    )
)


@pytest.fixture(scope="module")
def ports():
    """Of the services, by classes."""
    with begun() as rekindle:
        deployer = Deployer(rekindle)
        rows = deployer.app("models", SOURCE)["services"]
        yield {row["name"]: row["port"] for row in rows}


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    given = json.dumps(body) if isinstance(body, dict) else body
    connection.request(method, path, given, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def told(port, method, path, body=None, status=200, **headers):
    """The document of an answer."""
    found, said, _ = ask(port, method, path, body, **headers)
    assert found == status, said
    return json.loads(said)


def tensor(name, shape, data, datatype="FP32"):
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def pair(a=((1, 2, 3),), b=((4, 5, 6),)):
    return [tensor("a", [len(a), 3], a), tensor("b", [len(b), 3], b)]


def test_it_says_what_it_is(ports):
    port = ports["Whole"]
    server = told(port, "GET", "/v2")
    assert server["name"] == "rekindle" and "binary_tensor_data" in server["extensions"]
    assert told(port, "GET", "/v2/health/live") == {"live": True} and told(port, "GET", "/v2/health/ready") == {"ready": True}
    model = told(port, "GET", "/v2/models/Whole")
    assert model["versions"] == ["1"] and model["inputs"][1] == {"name": "b", "datatype": "FP32", "shape": [-1, 3]}
    assert model["outputs"] == [{"name": "mixed", "datatype": "FP32", "shape": [-1, 3]}, {"name": "sum", "datatype": "FP32", "shape": []}]
    assert told(port, "GET", "/v2/models/Whole/versions/1") == model
    assert told(port, "GET", "/v2/models/Whole/ready") == {"name": "Whole", "ready": True}
    # What is Rekindle's own is there, too.
    assert package.Cls.from_name("models", "Whole")().mixed.remote(*(numpy.ones((1, 3), "float32"),) * 2)[1] == 9


def test_numbers_in_json_come_back_in_json(ports):
    for nested in (lambda rows: rows, lambda rows: [number for row in rows for number in row]):
        a, b = [[1, 2, 3], [4, 5, 6.5]], [[1, 1, 1], [0, 0, 0]]
        inputs = [tensor("b", [2, 3], nested(b)), tensor("a", [2, 3], nested(a))]
        answer = told(ports["Whole"], "POST", "/v2/models/Whole/infer", {"id": "x 1", "inputs": inputs})
        assert answer["id"] == "x 1" and answer["model_name"] == "Whole" and answer["model_version"] == "1"
        assert answer["outputs"] == [tensor("mixed", [2, 3], [3, 5, 7, 8, 10, 13]), tensor("sum", [], [46])]
    # One of the outputs.
    answer = told(ports["Whole"], "POST", "/v2/models/Whole/versions/1/infer", {"inputs": pair(), "outputs": [{"name": "sum"}]})
    assert answer["outputs"] == [tensor("sum", [], [27])] and "id" not in answer


def binary(document, *pieces):
    """A body of both, and the header that says where the one ends."""
    head = json.dumps(document).encode()
    return head + b"".join(pieces), {"Inference_Header_Content_Length": str(len(head)), "Content_Type": "application/octet-stream"}


def behind(name, shape, size, datatype="FP32"):
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


def test_tensors_come_and_go_as_bytes(ports):
    a, b = numpy.arange(300, dtype="<f4").reshape(100, 3), numpy.ones((100, 3), "<f4")
    document = {"inputs": [behind("a", [100, 3], 1200), behind("b", [100, 3], 1200)], "parameters": {"binary_data_output": True}}
    document["outputs"] = [{"name": "sum", "parameters": {"binary_data": False}}, {"name": "mixed"}]
    body, headers = binary(document, a.tobytes(), b.tobytes())
    status, said, given = ask(ports["Whole"], "POST", "/v2/models/Whole/infer", body, **headers)
    assert status == 200, said
    length = int({name.lower(): value for name, value in given.items()}["inference-header-content-length"])
    rows = json.loads(said[:length])["outputs"]
    assert rows[0] == tensor("sum", [], [float((2 * a + b).sum())])
    assert rows[1] == behind("mixed", [100, 3], 1200) and said[length:] == (2 * a + b).tobytes()


def test_every_type_goes_both_ways(ports):
    values = {name: [0, 1, 2] for name in DATATYPES}
    values |= {"bool": [True, False, True], "bytes": ["", "naïve", "雨"], "uint64": [0, 1, 2**64 - 1], "int64": [-(2**63), 0, 2**63 - 1]}
    values |= {"int8": [-128, 0, 127], "float16": [0.5, -65504, 1], "float64": [1e300, 0.1, -0.0], "bfloat16": [1, -0.5, 1.0078125]}
    inputs = [tensor(name, [3], values[name], datatype) for name, datatype in DATATYPES.items()]
    answer = told(ports["Types"], "POST", "/v2/models/types/infer", {"inputs": inputs})
    assert answer["outputs"] == inputs
    # And as bytes: texts have their lengths in front, bfloat16 the upper halves of float32.
    bytes_of = {name: numpy.array(values[name], name).tobytes() for name in DATATYPES if name not in ("bytes", "bfloat16")}
    bytes_of["bfloat16"] = (numpy.array(values["bfloat16"], "float32").view("uint32") >> 16).astype("<u2").tobytes()
    bytes_of["bytes"] = b"".join(len(raw := text.encode()).to_bytes(4, "little") + raw for text in values["bytes"])
    rows = [behind(name, [3], len(bytes_of[name]), datatype) for name, datatype in DATATYPES.items()]
    body, headers = binary({"inputs": rows, "parameters": {"binary_data_output": True}}, *bytes_of.values())
    status, said, given = ask(ports["Types"], "POST", "/v2/models/types/infer", body, **headers)
    assert status == 200, said
    assert said.endswith(b"".join(bytes_of[name] for name in DATATYPES))
    # No number is lost on the way: bytes of infinite ones come, and JSON refuses them by a sentence.
    bytes_of["float32"] = numpy.array([numpy.inf, numpy.nan, 1], "<f4").tobytes()
    body, headers = binary({"inputs": rows, "outputs": [{"name": "float32"}]}, *bytes_of.values())
    assert "JSON cannot have" in told(ports["Types"], "POST", "/v2/models/types/infer", body, 400, **headers)["error"]


def test_requests_come_together_in_batches(ports):
    port = ports["Batches"]
    answer = told(port, "POST", "/v2/models/mixer/infer", {"inputs": pair([[1, 2, 3]] * 4, [[0, 0, 0]] * 4)})
    assert answer["outputs"] == [tensor("beside", [4], [4] * 4, "INT64"), tensor("mixed", [4, 3], [2, 4, 6] * 4)]
    # Ten elements are more than one batch.
    answer = told(port, "POST", "/v2/models/mixer/infer", {"inputs": pair([[at, 0, 0] for at in range(10)], [[0, 0, 0]] * 10)})
    assert answer["outputs"][1]["data"][::3] == [2 * at for at in range(10)] and set(answer["outputs"][0]["data"][:8]) == {4}
    # Those of different requests are computed together, and each gets its own.
    found = {}

    def one(at):
        found[at] = told(port, "POST", "/v2/models/mixer/infer", {"inputs": pair([[at, at, at]], [[1, 1, 1]])})["outputs"]

    threads = [threading.Thread(target=one, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert {at: rows[1]["data"] for at, rows in found.items()} == {at: [2 * at + 1] * 3 for at in range(8)}
    assert max(rows[0]["data"][0] for rows in found.values()) > 1
    # One output needs nothing around it.
    answer = told(ports["Single"], "POST", "/v2/models/Single/infer", {"inputs": [tensor("x", [3, 2], [0, 1, 2, 3, 4, 5])]})
    assert answer["outputs"] == [tensor("y", [3, 2], [0, 2, 4, 6, 8, 10])]
    # By Rekindle's own calls an element is one of the batch.
    assert package.Cls.from_name("models", "Batches")().mixed.remote(numpy.ones(3, "float32"), numpy.ones(3, "float32"))["mixed"].tolist() == [3] * 3


INFER = "/v2/models/Whole/infer"
WRONG = [
    ("GET", "/v2/models/other", None, 404, "there is no model 'other'; there is 'Whole'"),
    ("GET", "/v2/models/Whole/versions/2", None, 404, "no version '2'"),
    ("GET", "/v1/models", None, 404, "/v2/models/Whole"),
    ("GET", INFER, None, 405, "use POST"),
    ("POST", INFER, b"{", 400, "no JSON"),
    ("POST", INFER, b"[]", 400, "list in JSON"),
    ("POST", INFER, b'{"inputs": [NaN]}', 400, "NaN is no number"),
    ("POST", INFER, {}, 400, "the inputs of the request"),
    ("POST", INFER, {"inputs": pair()[:1]}, 400, "'b' is missing"),
    ("POST", INFER, {"inputs": [*pair(), *pair()]}, 400, "'a' is there twice"),
    ("POST", INFER, {"inputs": [*pair(), tensor("c", [1], [1])]}, 400, "no input 'c'; there are a, b"),
    ("POST", INFER, {"inputs": pair(), "outputs": [{"name": "d"}]}, 400, "no output 'd'"),
    ("POST", INFER, {"inputs": pair(), "id": 7}, 400, "id is 7"),
    ("POST", INFER, {"inputs": [tensor("a", [1, 4], [1] * 4)]}, 400, r"shape [1, 4]; it is to be [-1, 3]"),
    ("POST", INFER, {"inputs": [tensor("a", [10**30, 3], [1])]}, 400, "it is to be [-1, 3]"),
    ("POST", INFER, {"inputs": [tensor("a", [10**15, 3], [1])]}, 400, "has 1 elements"),
    ("POST", INFER, {"inputs": [tensor("a", [1, 3], [1, 2, 3], "FP64")]}, 400, "it is to be FP32"),
    ("POST", INFER, {"inputs": [tensor("a", [1, 3], [1, 2, 3], "FP33")]}, 400, "none of the protocol's"),
    ("POST", INFER, {"inputs": [tensor("a", [1, 3], [1, "2", 3])]}, 400, "not all FP32"),
    ("POST", INFER, {"inputs": [tensor("a", [1, 3], [[1], [2, 3]])]}, 400, "different lengths"),
    ("POST", INFER, {"inputs": [behind("a", [1, 3], 12)]}, 400, "0 bytes are left"),
    ("POST", INFER, {"inputs": pair([[666, 0, 0]])}, 500, "ArithmeticError: no such number"),
]


def test_what_is_wrong_is_one_sentence(ports):
    for method, path, body, status, sentence in WRONG:
        assert sentence in told(ports["Whole"], method, path, body, status)["error"], (path, body)
    for document, pieces, sentence in (
        ({"inputs": [behind("a", [1, 3], 8), behind("b", [1, 3], 12)]}, bytes(20), "'a' has 8 bytes, and its shape [1, 3] of FP32 has 12"),
        ({"inputs": [behind("a", [1, 3], 12), behind("b", [1, 3], 12)]}, bytes(23), "11 bytes are left"),
        ({"inputs": [behind("a", [1, 3], 12), behind("b", [1, 3], 12)]}, bytes(25), "1 bytes are left of the request behind"),
    ):
        body, headers = binary(document, pieces)
        assert sentence in told(ports["Whole"], "POST", INFER, body, 400, **headers)["error"]
    assert "Content-Length is '99'" in told(ports["Whole"], "POST", INFER, b"{}", 400, Inference_Header_Content_Length="99")["error"]
    assert "compressed" in told(ports["Whole"], "POST", INFER, b"{}", 415, Content_Encoding="gzip")["error"]
    types = {"inputs": [tensor("uint8", [1], [256], "UINT8")]}
    assert "not all UINT8" in told(ports["Types"], "POST", "/v2/models/types/infer", types, 400)["error"]
    unequal = {"inputs": [tensor("a", [1, 3], [1] * 3), tensor("b", [2, 3], [1] * 6)]}
    assert "batches of 1, 2" in told(ports["Batches"], "POST", "/v2/models/mixer/infer", unequal, 400)["error"]
    text = {"inputs": [tensor("bytes", [1], ["\ud800"], "BYTES")]}
    assert "half of a character" in told(ports["Types"], "POST", "/v2/models/types/infer", text, 400)["error"]
    deep = b'{"inputs": [{"name": "bytes", "datatype": "BYTES", "shape": [1], "data": %s"x"%s}]}' % (b"[" * 900, b"]" * 900)
    assert "'bool' is missing" in told(ports["Types"], "POST", "/v2/models/types/infer", deep, 400)["error"]
    asked = {"inputs": [tensor("x", [1, 2], [60, 0])]}
    assert "took longer than 0.3 s" in told(ports["Slow"], "POST", "/v2/models/Slow/infer", asked, 504)["error"]
    # Nothing of that did any harm.
    assert told(ports["Whole"], "POST", INFER, {"inputs": pair()})["outputs"][1]["data"] == [27]


def test_what_cannot_be_declared_is_refused_at_the_deployment(rekindle, deploy):
    source = "@app.cls(gpu='emulated')\nclass Model:\n    @rekindle.method()\n    def work(self, x):\n        return x\n    @rekindle.asgi_app()\n    def serve(self):\n        return rekindle.infer_app({})\n"
    spec = "rekindle.TensorSpec('float32', (None,))"
    for given, sentence in (
        (f"self.serve, inputs={{'x': {spec}}}, outputs={{'y': {spec}}}", "give a method with @rekindle.method"),
        (f"self.work, inputs={{'x': {spec}, 'y': {spec}}}, outputs={{'y': {spec}}}", "does not take the inputs x, y"),
        (f"self.work, inputs={{'x': 7}}, outputs={{'y': {spec}}}", "give rekindle.TensorSpec by name"),
        (f"self.work, inputs={{'x': rekindle.TensorSpec('float8', ())}}, outputs={{'y': {spec}}}", "dtype is 'float8'"),
    ):
        with pytest.raises(CommandError, match=sentence):
            deploy(deploy.write("wrong", source.format(given)))
    assert rekindle.json("services")["services"] == []


DECLARED = """
from numba import cuda

@cuda.jit
def scale(weights, x):
    at = cuda.grid(1)
    if at < x.size:
        x[at] *= weights[at]

VECTOR = rekindle.TensorSpec("float32", (4,))

@app.cls(gpu="emulated", sleep_window=0, data={{"weights": rekindle.Data({url!r}, dtype="float32", shape=4)}})
class Model:
    @rekindle.method()
    def work(self, x):
        found = cuda.to_device(x)
        scale[1, 32](cuda.as_cuda_array(self.weights.load()), found)
        return found.copy_to_host()

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.infer_app(self.work, inputs={{"x": VECTOR}}, outputs={{"y": VECTOR}})
"""


def test_weights_that_are_declared_come_beside_the_restore_or_the_client_learns_why_not(rekindle, deploy):
    place = rekindle.root / "weights"
    place.write_bytes(numpy.array([1, 2, 3, 4], "<f4").tobytes())
    (row,) = deploy.app("scaled", DECLARED.format(url=place.as_uri()))["services"]
    asked = {"inputs": [tensor("x", [4], [1, 1, 2, 0.5])]}
    infer = lambda status=200: told(row["port"], "POST", "/v2/models/Model/infer", asked, status)
    assert infer()["outputs"] == [tensor("y", [4], [1, 2, 6, 2])]
    # Weights that are gone are a sentence, and others are taken once they are there.
    rekindle("kill", "scaled-Model-1")
    deploy.come_to("scaled-Model")
    place.unlink()
    assert str(place) in infer(503)["error"]
    place.write_bytes(numpy.array([2, 2, 2, 2], "<f4").tobytes())
    assert infer()["outputs"] == [tensor("y", [4], [2, 2, 4, 1])]
