"""Models made to apps, as far as that goes without torch: the file of weights, the app's text, what graphs write to, and refusals."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from harness import CommandError
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.converting import convert, name_of
from rekindle.converting.exported import argument, batch, spec
from rekindle.converting.graph import placeholders_written
from rekindle.converting.made import ConvertError, Made
from rekindle.converting.source import parameters, source
from rekindle.converting.weights import write
from rekindle.inference.placed import as_document, from_document
from rekindle.inference.tensors import TensorSpec
from rekindle.loading import load

BYTES = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "C64": 8, "U16": 2}
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda name: not name.startswith("padding."))


@settings(deadline=None)
@given(st.lists(st.tuples(names, st.sampled_from(sorted(BYTES)), shapes), unique_by=lambda row: row[0], max_size=6))
def test_tensors_are_a_file_of_safetensors(tmp_path_factory, tensors):
    file = tmp_path_factory.getbasetemp() / "weights.safetensors"
    sizes = {name: math.prod(shape) * BYTES[dtype] for name, dtype, shape in tensors}
    contents = {name: bytes((number * 7 + at) % 251 for at in range(size)) for number, (name, size) in enumerate(sizes.items())}
    rows, size = write(file, tensors, contents.get)
    found = file.read_bytes()
    assert len(found) == size and list(rows) == list(contents)
    length = int.from_bytes(found[:8], "little")
    header = json.loads(found[8 : 8 + length])
    # As the format wants it: one tensor begins where the one before ends, from the header's end to the file's.
    at = 0
    for row in header.values():
        assert row["data_offsets"][0] == at
        at = row["data_offsets"][1]
    assert 8 + length + at == size
    for name, row in rows.items():
        assert row.begin % 256 == 0 and found[row.begin : row.end] == contents[name]
        assert header[name]["data_offsets"] == [row.begin - 8 - length, row.end - 8 - length]
        assert (row.dtype, row.shape) == (header[name]["dtype"], tuple(header[name]["shape"]))
    assert from_document(json.loads(json.dumps(as_document(rows)))) == rows


def made(**fields):
    return Made(tensors={}, inputs={"x": TensorSpec("float32", (None, 3)), "in.1": TensorSpec("int64", (None,))}, **fields)


def loaded(tmp_path, monkeypatch, text):
    """The app's declaration, which needs no torch, and its module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "app.py").write_text(text)
    try:
        declaration = load(tmp_path / "app.py").declarations["Model"]
        return declaration, sys.modules["app"]
    finally:
        del sys.modules["app"]


def test_an_app_is_written_that_declares_weights_and_tensors(tmp_path, monkeypatch):
    one = made(outputs={'a "b"': TensorSpec("bfloat16", (None, 2))}, batch=4)
    title = 'odd """ \\ name.pt2'
    declaration, module = loaded(tmp_path, monkeypatch, source(one, "model", title, "s3://bucket/my key", 4096, "cuda"))
    assert declaration.service.full_name == "model-Model" and declaration.limits.concurrency == 4
    assert declaration.data_options() == ["--data", "s3://bucket/my key"] and declaration.data["weights"].nbytes == 4096
    assert one.inputs == module.INPUTS and one.outputs == module.OUTPUTS and tmp_path.resolve() == module.HERE
    marks = dict(declaration.marks())
    assert marks["infer"].batched.max_batch_size == 4 and marks["serve"].is_asgi and marks["load"].enters
    # One whose inputs are given as they come, and a language model.
    declaration, _ = loaded(tmp_path, monkeypatch, source(made(outputs=one.outputs), "model", title, "file:///x", 1, "cpu"))
    marks = dict(declaration.marks())
    assert marks["infer"].batched is None and marks["infer"].is_method and declaration.limits.concurrency == 1
    assert 'device="cpu"' in (tmp_path / "app.py").read_text()
    declaration, module = loaded(tmp_path, monkeypatch, source(Made(tensors={}, is_language=True), "words", title, "file:///x", 1, "cuda"))
    assert declaration.limits.concurrency == 32 and not hasattr(module, "INPUTS")


def test_parameters_have_names_of_python_s():
    found = parameters(dict.fromkeys(["x", "in.1", "in_1", "class", "self", "2", "é"], TensorSpec("bool", ())))
    assert found[:2] == ["x", "in_1"] and len(set(found)) == 7 and all(name.isidentifier() for name in found)
    assert "class" not in found and "self" not in found


def test_an_app_is_called_as_the_model(tmp_path):
    model = tmp_path / "my model.v2.pt2"
    model.touch()
    assert name_of(model, None) == "my-model-v2" and name_of(tmp_path / ".." / tmp_path.name, None)
    assert name_of(model, "other") == "other"
    for name in ("a b", "x" * 33, "-"):
        with pytest.raises(ConvertError, match="no name of an app; give --name"):
            name_of(model, name)


def row(kind, name, target=None, what="TensorArgument", **more):
    return SimpleNamespace(kind=SimpleNamespace(name=kind), arg=type(what, (), {"name": name, **more})(), target=target)


def test_arguments_of_a_program_are_weights_inputs_and_constants():
    zeros = numpy.zeros((2, 3), "float32")
    program = SimpleNamespace(state_dict={"l.weight": zeros}, constants={"c": zeros})
    tensors, inputs, values = {}, {}, {"x": zeros, "odd": SimpleNamespace(dtype="torch.complex64", shape=(1,))}
    of = lambda one: argument(program, one, tensors, inputs, values)
    assert of(row("PARAMETER", "p_l_weight", "l.weight")) == ("weight", "l.weight")
    assert of(row("CONSTANT_TENSOR", "c_c", "c")) == ("weight", "c") and list(tensors) == ["l.weight", "c"]
    assert of(row("USER_INPUT", "x")) == ("input", 0) and inputs == {"x": TensorSpec("float32", (2, 3))}
    assert of(row("USER_INPUT", "k", what="ConstantArgument", value=None)) == ("constant", None)
    for one, sentence in (
        (row("USER_INPUT", "n", what="SymIntArgument"), "'n' of the program is no tensor"),
        (row("CUSTOM_OBJ", "o"), "has a custom obj as an input"),
        (row("USER_INPUT", "odd"), "is complex64, which the protocol has no name for"),
    ):
        with pytest.raises(ConvertError, match=sentence):
            of(one)


class Symbol:
    """A size that may be any."""

    def __init__(self, name):
        self.node = SimpleNamespace(expr=name)

    def __repr__(self):
        return self.node.expr


def test_batches_are_where_the_first_size_alone_may_be_any():
    n, m = Symbol("n"), Symbol("m")
    tensor = lambda *shape: SimpleNamespace(dtype="torch.float32", shape=shape)
    program = SimpleNamespace(range_constraints={"n": SimpleNamespace(lower=2, upper=8)})
    assert spec("input", tensor(n, 3)).shape == (None, 3)
    assert batch(program, [tensor(n, 3), tensor(n)]) == (2, 8)
    assert batch(SimpleNamespace(range_constraints={}), [tensor(n)]) == (1, 16)
    for values in ([tensor(n), tensor(m)], [tensor(n, m)], [tensor(2, 3)], [tensor(n), tensor()], [tensor()]):
        assert batch(program, values) == (1, None)


class Graph:
    """Nodes as torch.fx has them: `add(op, name, arguments)`, of an operator that has a schema, or of a graph within this one."""

    def __init__(self, *placeholders, **children):
        self.graph, self.nodes = self, []
        for name in placeholders:
            self.add("placeholder", name)
        for name, child in children.items():
            setattr(self, name, child)

    def add(self, op, name, args=(), target=None, writes=(), is_view=False):
        alias = lambda is_write: SimpleNamespace(is_write=is_write)
        if op == "call_function" and target is None:
            arguments = [SimpleNamespace(name=str(at), alias_info=alias(True) if at in writes else None) for at in range(len(args))]
            schema = SimpleNamespace(arguments=arguments, returns=[SimpleNamespace(alias_info=alias(False) if is_view else None)])
            target = SimpleNamespace(_schema=schema)
        inputs = [one for one in args if hasattr(one, "op")]
        self.nodes.append(Node(op=op, name=name, args=list(args), kwargs={}, target=target, all_input_nodes=inputs))
        return self.nodes[-1]


class Node:
    def __init__(self, **fields):
        vars(self).update(fields)


def test_what_a_graph_writes_to_is_found_through_views():
    graph = Graph("a", "b", "c", "d")
    a, b, c, d = graph.nodes
    view = graph.add("call_function", "view", [a], is_view=True)
    graph.add("call_function", "add_", [graph.add("call_function", "again", [view], is_view=True), b], writes=[0])
    graph.add("call_function", "add_2", [graph.add("call_function", "copy", [c]), 1], writes=[0])
    assert placeholders_written(graph) == {"a"}
    # Running statistics in training, and a graph within.
    norm = type("Norm", (), {"_schema": view.target._schema, "__str__": lambda _: "aten.batch_norm.default"})()
    graph.add("call_function", "norm", [d, None, None, b, c, True], target=norm)
    assert placeholders_written(graph) == {"a", "b", "c"}
    inner = Graph("x", "y")
    inner.add("call_function", "copy_", [inner.nodes[0]], writes=[0])
    outer = Graph("x", "y", "z", inner=inner)
    held = outer.add("get_attr", "held", target="inner")
    outer.add("call_function", "within", [held, outer.nodes[0], [outer.nodes[1]]], target=object())
    assert placeholders_written(outer) == {"x", "y"}


def test_what_cannot_be_converted_is_one_sentence_and_leaves_nothing(rekindle):
    place = rekindle.root / "models"
    (place / "empty").mkdir(parents=True)
    for name in ("net.pt2", "net.onnx", "net.txt"):
        (place / name).write_bytes(b"no model")
    (place / "config.json").write_text("{}")
    cases = [
        ([place / "absent.pt2"], "there is no .*absent.pt2; name a .pt2 or .onnx file"),
        ([place / "net.txt"], "neither a .pt2 file"),
        ([place / "net.pt2", "--name", "a b"], "'a b' is no name of an app"),
        ([place / "net.pt2", "--data-url", "ftp://x/y"], "names no data; give s3://BUCKET/KEY"),
        ([place / "net.pt2", "--data-url", "-x"], "names no data"),
    ]
    for words, sentence in cases:
        with pytest.raises(CommandError, match=sentence) as failed:
            rekindle(
                "convert",
                *words[:1],
                "-o",
                place / "app",
                *[f"{one}={two}" for one, two in zip(words[1::2], words[2::2])],
                "--python",
                sys.executable,
            )
        assert failed.value.message.startswith("rekindle: ") and not (place / "app").exists()
    for output in (place / "net.txt", place):
        with pytest.raises(CommandError, match="is there already; name a directory that is not"):
            rekindle("convert", place / "net.pt2", "--output", output, "--python", sys.executable)
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "empty", "net.onnx", "net.pt2", "net.txt"]
    assert "safetensors" in rekindle("convert", "--help")


@pytest.mark.skipif("torch" in sys.modules or any((Path(path) / "torch").is_dir() for path in sys.path), reason="torch is installed")
def test_without_torch_it_says_so(tmp_path):
    (tmp_path / "net.pt2").touch()
    with pytest.raises(ConvertError, match="converted by torch, which is not installed for .*; install it, or give --python"):
        convert(tmp_path / "net.pt2", tmp_path / "app")
    assert not (tmp_path / "app").exists()
