"""Models converted and computed by torch, on the CPU, beside themselves: they say the same. Skipped where torch is not installed."""

import json
import shutil
import sys

import numpy
import pytest

torch = pytest.importorskip("torch")

from rekindle.converting import convert  # noqa: E402
from rekindle.converting.made import ConvertError  # noqa: E402
from rekindle.inference.exported import Exported  # noqa: E402
from rekindle.inference.language import Language  # noqa: E402
from rekindle.inference.text import Growing  # noqa: E402
from rekindle.loading import load_module  # noqa: E402

DYNAMIC = torch.export.Dim.DYNAMIC


class Pictures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)
        self.tied = torch.nn.Linear(8, 5)
        self.tied.weight = self.last.weight

    def forward(self, x):
        y = torch.relu_(self.norm(self.conv(x))).mean((2, 3))
        return self.last(y) + self.tied(y)


class Counter(torch.nn.Module):
    """Writes to buffers, through a view too, and makes tensors on its own."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, 4), persistent=False)
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x, *, more):
        self.count.add_(1)
        self.seen[1].add_(x[0])
        with torch.no_grad():
            y = self.linear(x) * self.scale + torch.arange(4)
        return {"y": y + more, "pair": (self.seen.clone(), self.count.clone())}


def exported(tmp_path, model, arguments, options=None, dynamic=None):
    file = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, arguments, options, dynamic_shapes=dynamic), file)
    return file


def app(tmp_path, model):
    """The directory, what was said of it, and the app's module."""
    out = tmp_path / "app"
    shutil.rmtree(out, ignore_errors=True)
    found = convert(model, out, device="cpu")
    module = load_module(out / "app.py")
    del sys.modules["app"]
    sys.path.remove(str(out))
    return out, found, module


def graph(tmp_path, model):
    """What an instance has, its weights there."""
    out, found, module = app(tmp_path, model)
    made = Exported(out, module.WEIGHTS, module.INPUTS, module.OUTPUTS, device="cpu")
    made.rehearse()
    with_weights(made, out)
    return made, found


def with_weights(made, out):
    """As if the object had come to the GPU."""
    memory = torch.from_numpy(numpy.fromfile(out / "weights.safetensors", "uint8"))
    assert memory.numel() == made.data.nbytes
    made.take(memory)
    made.current = lambda: None


def test_a_program_of_torch_export_s_needs_its_source_no_more(tmp_path):
    torch.manual_seed(0)
    model = Pictures().eval()
    made, found = graph(tmp_path, exported(tmp_path, model, (torch.randn(2, 3, 6, 6),), dynamic=({0: DYNAMIC},)))
    assert found["protocol"] == "v2" and found["batch"] == 16 and found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 5]}]
    for count in (1, 2, 5):
        x = torch.randn(count, 3, 6, 6)
        (y,) = made(x.numpy())
        assert numpy.array_equal(y, model(x).detach().numpy())
    rows = made.batch(list(torch.ones(1, 3, 6, 6).numpy()))
    assert len(rows) == 1 and numpy.allclose(rows[0][0], model(torch.ones(1, 3, 6, 6)).detach().numpy()[0], atol=1e-6)
    # Tied weights are one, and safetensors' own reader has the file.
    weights = made.model["weights"]
    assert weights["tied.weight"] == weights["last.weight"]
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(tmp_path / "app/weights.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("conv.weight"), model.conv.weight)
    with pytest.raises(ValueError, match=r"it is to be \[-1, 3, 6, 6\]"):
        made(numpy.zeros((1, 3, 5, 6), "float32"))


def test_buffers_that_are_written_to_are_the_instance_s_own(tmp_path):
    torch.manual_seed(0)
    model, x, more = Counter().eval(), torch.randn(2, 4), torch.randn(2, 4)
    file = exported(tmp_path, model, (x,), {"more": more})
    made, found = graph(tmp_path, file)
    assert found["batch"] is None and [row["name"] for row in found["outputs"]] == ["y", "pair_0", "pair_1"]
    assert made.model["written"] == ["count", "seen"]
    native = torch.export.load(file).module()
    before = (tmp_path / "app/weights.safetensors").read_bytes()
    for _ in range(3):
        expected = native(x, more=more)
        for one, other in zip(made(x.numpy(), more.numpy()), [expected["y"], *expected["pair"]], strict=True):
            assert numpy.array_equal(one, other.detach().numpy())
    assert (tmp_path / "app/weights.safetensors").read_bytes() == before
    # Another instance begins as the program was.
    assert graph(tmp_path, file)[0](x.numpy(), more.numpy())[2] == 1


class Refused(torch.nn.Module):
    def __init__(self, function, has_weights=True):
        super().__init__()
        self.function = function
        if has_weights:
            self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, *more):
        return self.function(x, *more) + (self.weight if hasattr(self, "weight") else 0)


def test_what_cannot_be_an_app_is_refused_and_nothing_is_written(tmp_path):
    one = torch.ones(3)
    for model, arguments, sentence in (
        (Refused(lambda x: x * 1j), (one,), "complex64, which the protocol has no name for"),
        (Refused(lambda x: x, has_weights=False), (one,), "has no weights"),
    ):
        with pytest.raises(ConvertError, match=sentence):
            convert(exported(tmp_path, model, arguments), tmp_path / "app")
    for name in ("bad.pt2", "bad.onnx"):
        (tmp_path / name).write_bytes(b"no model" * 40)
    with pytest.raises(ConvertError, match="cannot be read as a program of torch.export's"):
        convert(tmp_path / "bad.pt2", tmp_path / "app")
    with pytest.raises(ConvertError, match="lacks config.json or weights"):
        convert(tmp_path, tmp_path / "app")
    with pytest.raises(ConvertError, match="bad.pt2/app cannot be written"):
        convert(exported(tmp_path, Pictures().eval(), (torch.ones(2, 3, 6, 6),)), tmp_path / "bad.pt2/app")
    assert not (tmp_path / "app").exists() and not any(path.name.startswith(".") for path in tmp_path.iterdir())


SMALL = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=300)
LANGUAGES = {
    "GPT2": dict(n_layer=2, n_embd=64, n_head=4, vocab_size=300),
    "Llama": SMALL | dict(intermediate_size=128, num_key_value_heads=2),
    # Tied weights, and attention that looks back no further than 8 tokens.
    "Qwen2": SMALL | dict(intermediate_size=128, num_key_value_heads=2, tie_word_embeddings=True),
    "Mistral": SMALL | dict(intermediate_size=128, num_key_value_heads=2, sliding_window=8),
    "Bloom": dict(hidden_size=64, n_layer=2, n_head=4, vocab_size=300),
    "OPT": SMALL | dict(ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=128),
}


@pytest.mark.parametrize("kind", LANGUAGES)
def test_texts_that_are_computed_together_are_those_of_the_model_alone(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**LANGUAGES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "model")
    out, found, module = app(tmp_path, tmp_path / "model")
    assert found["protocol"] == "openai"
    engine = Language(out, module.WEIGHTS, slots=4, device="cpu")
    engine.rehearse()
    with_weights(engine, out)
    prompts = {3: [5, 6, 7, 8, 9], 1: [70, 71], 2: list(range(20, 40))}
    rows = {slot: [] for slot in prompts}

    def steps(count):
        for _ in range(count):
            for slot, logits in engine.advance({slot: int(rows[slot][-1].argmax()) for slot in engine.rows}).items():
                rows[slot].append(logits)

    # One after the other comes, and goes.
    rows[3].append(engine.begin(3, prompts[3]))
    steps(3)
    rows[1].append(engine.begin(1, prompts[1]))
    rows[2].append(engine.begin(2, prompts[2]))
    steps(4)
    engine.end(2)
    steps(4)
    engine.end(1)
    engine.end(3)
    assert engine.cache is None
    for slot, prompt in prompts.items():
        tokens = list(prompt)
        for logits in rows[slot]:
            with torch.inference_mode():
                expected = model(input_ids=torch.tensor([tokens])).logits[0, -1].numpy()
            assert numpy.allclose(logits, expected, atol=1e-5), (slot, len(tokens))
            tokens.append(int(expected.argmax()))


def test_a_language_model_that_keeps_more_than_keys_and_values_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=64, num_hidden_layers=1, vocab_size=300))
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ConvertError, match="MambaForCausalLM keeps more of a text than keys and values"):
        convert(tmp_path / "model", tmp_path / "app")


def test_a_tokenizer_beside_the_model_is_taken(tmp_path):
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, special_tokens=["<end>", "<turn>"], initial_alphabet=alphabet)
    made.train_from_iterator(["the rain in spain stays mainly in the plain"], trainer)
    template = "{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}<turn>assistant:{% endif %}"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", chat_template=template)
    config = transformers.LlamaConfig(**LANGUAGES["Llama"], eos_token_id=0, bos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = [0, 1]
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "model")
    out, _, module = app(tmp_path, tmp_path / "model")
    found = Language(out, module.WEIGHTS, device="cpu").tokenizer
    assert found.size == len(tokenizer) and set(found.ends) == {0, 1}
    text = "the rain 雨 stays"
    tokens = found.encode(text)
    assert found.decode(tokens) == text and len(tokens) < len(text.encode())
    growing = Growing(found)
    assert "".join([growing.add(token) for token in tokens]) == text and found.decode([*tokens, 0]) == text
    asked = found.chat([{"role": "user", "content": "rain"}])
    assert asked == tokenizer.encode("<turn>user:rain<turn>assistant:", add_special_tokens=False) and asked[0] == 1


def test_other_models_of_transformers_are_traced(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, intermediate_size=128)).eval()
    model.save_pretrained(tmp_path / "model")
    made, found = graph(tmp_path, tmp_path / "model")
    assert [row["name"] for row in found["inputs"]] == ["input_ids", "attention_mask"] and found["batch"] is None
    for shape in ((1, 5), (3, 9)):
        ids = torch.randint(0, 300, shape)
        mask = torch.ones(shape, dtype=torch.int64)
        mask[:, -1] = 0
        (y,) = made(ids.numpy(), mask.numpy())
        assert numpy.allclose(y, model(input_ids=ids, attention_mask=mask).logits.detach().numpy(), atol=1e-6)
    document = json.loads((tmp_path / "model/config.json").read_text())
    for change, sentence in (({"quantization_config": {"quant_method": "x"}}, "has quantized weights"), ({"architectures": ["No"]}, "'No', which")):
        (tmp_path / "model/config.json").write_text(json.dumps(document | change))
        with pytest.raises(ConvertError, match=sentence):
            convert(tmp_path / "model", tmp_path / "other")


def test_a_model_of_onnx_s_is_a_program_of_torch_s(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnx2torch")
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = numpy.random.default_rng(0).standard_normal((4, 3)).astype("float32")

    def write(operator, domain=""):
        nodes = [helper.make_node(operator, ["in.1", "w"], ["m"], domain=domain), helper.make_node("Relu", ["m"], ["class"])]
        values = [helper.make_tensor_value_info(name, kinds.FLOAT, ["N", size]) for name, size in (("in.1", 4), ("class", 3))]
        made = helper.make_graph(nodes, "g", values[:1], values[1:], [onnx.numpy_helper.from_array(weights, "w")])
        onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]), tmp_path / "net.onnx")
        return tmp_path / "net.onnx"

    made, found = graph(tmp_path, write("MatMul"))
    assert found["inputs"] == [{"name": "in.1", "datatype": "FP32", "shape": [-1, 4]}] and found["outputs"][0]["name"] == "class"
    x = numpy.random.default_rng(1).standard_normal((3, 4)).astype("float32")
    assert numpy.allclose(made(x)[0], numpy.maximum(x @ weights, 0), atol=1e-6)
    assert numpy.allclose(made.batch([x[0]])[0][0], made(x)[0][0], atol=1e-6)
    with pytest.raises(ConvertError, match="an operator that onnx2torch lacks"):
        convert(write("Odd", "own"), tmp_path / "other")
