"""Functions that are models of torch's, torchvision's, timm's and transformers', with random weights.

A model is built without memory for its weights; they are views of its object's bytes on the GPU, wherever those come from.
"""

import contextlib
import math

import torch

torch.use_deterministic_algorithms(True, warn_only=True)
# Else all memory that weights would have is written to while a model is built without them.
torch.utils.deterministic.fill_uninitialized_memory = False
DEVICE = "cuda"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8"}
OF_NAMES = {name: dtype for dtype, name in DTYPES.items()}


@contextlib.contextmanager
def without_weights():
    """Parameters that are made here have a shape and no memory; buffers are as ever."""
    usual = torch.nn.Module.register_parameter

    def register(module, name, parameter):
        usual(module, name, parameter)
        # One that is made already belongs to another module, too: it stays the same.
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)

    torch.nn.Module.register_parameter = register
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = usual


def slots(model):
    """`{name: ([(dictionary, key), ...], tensor)}` of what belongs to the object: tied weights are there once."""
    found, names = {}, {}
    for prefix, module in model.named_modules():
        saved = {key: one for key, one in module._buffers.items() if key not in module._non_persistent_buffers_set}
        for place, own in ((module._parameters, module._parameters), (module._buffers, saved)):
            for key, tensor in own.items():
                if tensor is not None:
                    name = names.setdefault(id(tensor), f"{prefix}.{key}".lstrip("."))
                    found.setdefault(name, ([], tensor))[0].append((place, key))
    return found


class Model:
    """A function to the benchmark, as `science.Kernels` is. `ask(model, request, torch)` gives the result."""

    def __init__(self, build, ask, tolerance=3e-3, plan=None):
        self.ask, self.tolerance, self.plan = ask, tolerance, plan
        with without_weights():
            self.model = build().eval()
        self.slots = slots(self.model)
        self.tensors = [(name, DTYPES[one.dtype], tuple(one.shape)) for name, (_, one) in self.slots.items()]
        self.kept = None

    def make(self, name, generator):
        """Weights that keep activations at their size, made on the GPU."""
        _, like = self.slots[name]
        if name.endswith("running_var") or (like.dim() == 1 and name.endswith("weight")):
            made = torch.ones(like.shape, device=DEVICE)
        elif like.dim() < 2 or not like.is_floating_point():
            made = torch.zeros(like.shape, device=DEVICE)
        else:
            inputs = math.prod(like.shape[1:])
            scale = 1.0 if "embed" in name or "shared" in name else (2 if like.dim() == 4 else 1) / inputs
            made = torch.randn(like.shape, device=DEVICE, generator=generator) * math.sqrt(scale)
        return made.to(like.dtype).contiguous().flatten().view(torch.uint8).cpu().numpy()

    def open(self):
        """A GPU context, cuBLAS and cuDNN."""
        torch.cuda.init()
        x = torch.ones(1, 8, 8, 8, device=DEVICE)
        torch.nn.functional.conv2d(x, torch.ones(8, 8, 3, 3, device=DEVICE))
        x[0, 0] @ x[0, 0]
        torch.cuda.synchronize()
        for module in self.model.modules():
            for key, tensor in module._buffers.items():
                if tensor is not None and key in module._non_persistent_buffers_set:
                    module._buffers[key] = tensor.to(DEVICE)

    def take_host(self, data):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        array = torch.empty(data.nbytes, dtype=torch.uint8, device=DEVICE)
        array.copy_(torch.from_numpy(data))
        torch.cuda.synchronize()
        self.take(array)

    def take_gpu(self, array):
        self.take(torch.from_dlpack(array))

    def take(self, array):
        self.kept = array
        for name, (places, _) in self.slots.items():
            row = self.plan[name]
            tensor = array[row.begin : row.end].view(OF_NAMES[row.dtype]).view(row.shape)
            for place, key in places:
                place[key] = torch.nn.Parameter(tensor, requires_grad=False) if isinstance(place[key], torch.nn.Parameter) else tensor

    def rehearse(self, size):
        self.take(torch.zeros(size, dtype=torch.uint8, device=DEVICE))
        self.compute(0)
        self.forget()

    def forget(self):
        for _, (places, like) in self.slots.items():
            for place, key in places:
                place[key] = like
        self.kept = None
        torch.cuda.empty_cache()

    def compute(self, request):
        with torch.inference_mode():
            y = self.ask(self.model, request).float()
            values = torch.stack([y.mean(), y.abs().mean(), y.flatten()[0], y.flatten()[-1]])
            return values.tolist()

    def extra_bytes(self):
        return max(0, torch.cuda.max_memory_reserved() - self.kept.nbytes)


def drawn(request, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(request)).to(DEVICE)


def tokens(request, count, most):
    return torch.randint(3, most, (1, count), generator=torch.Generator().manual_seed(request)).to(DEVICE)


def picture(side):
    return lambda model, request: model(drawn(request, 1, 3, side, side))


def torchvision_model(name, **options):
    def build():
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **options)

    return build


def vgg11():
    return Model(torchvision_model("vgg11", init_weights=False), picture(224))


def inception3():
    return Model(torchvision_model("inception_v3", init_weights=False, aux_logits=False), picture(299))


def resnet50():
    return Model(torchvision_model("resnet50"), picture(224))


def nasnet():
    def build():
        import timm

        return timm.create_model("nasnetalarge", pretrained=False)

    return Model(build, picture(331))


def transformer(config, kind, dtype=torch.float32, **shape):
    def build():
        import transformers

        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return getattr(transformers, kind)(getattr(transformers, config)(**shape))
        finally:
            torch.set_default_dtype(before)

    return build


def speech():
    """Whisper's shape, small: 30 s of sound, and 24 words that it is asked about."""
    shape = dict(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12)
    build = transformer("WhisperConfig", "WhisperModel", encoder_ffn_dim=3072, decoder_ffn_dim=3072, **shape)

    def ask(model, request):
        sound = drawn(request, 1, 80, 3000)
        return model(input_features=sound, decoder_input_ids=tokens(request, 24, 50000)).last_hidden_state[0, -4:]

    return Model(build, ask)


def seq2seq():
    """T5's shape, base: 128 words in, 32 out."""
    build = transformer("T5Config", "T5ForConditionalGeneration", d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)

    def ask(model, request):
        return model(input_ids=tokens(request, 128, 32000), decoder_input_ids=tokens(request + 100, 32, 32000)).logits[0, -4:]

    return Model(build, ask)


def bert():
    return Model(transformer("BertConfig", "BertModel"), lambda model, request: model(tokens(request, 384, 30000)).last_hidden_state[0, :8])


def chat(vocabulary):
    """A prompt of 128 words and 16 more, one after the other, with the cache of keys and values; the words are given."""

    def ask(model, request):
        words = tokens(request, 144, vocabulary)
        found = model(words[:, :128], use_cache=True)
        for at in range(128, 144):
            found = model(words[:, at : at + 1], past_key_values=found.past_key_values, use_cache=True)
        return found.logits[0, -1]

    return ask


def bloom():
    shape = dict(hidden_size=2560, n_layer=30, n_head=32, vocab_size=250880)
    return Model(transformer("BloomConfig", "BloomForCausalLM", torch.bfloat16, **shape), chat(250000), 1e-1)


def llama():
    shape = dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000)
    return Model(transformer("LlamaConfig", "LlamaForCausalLM", torch.bfloat16, **shape), chat(32000), 1e-1)
