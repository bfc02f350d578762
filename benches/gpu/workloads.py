"""Unmodified GPU programs, one a framework feature. Every step prints a digest of its result.

    python workloads.py NAME [--steps N] [--pause SECONDS]     N steps, a line each: `step I DIGEST`
    python workloads.py NAME --batches FILE                    whenever FILE appears: a batch of steps, `batch MEDIAN_MS`
    python workloads.py NAME --serve FILE                      whenever FILE appears: a step, `answer DIGEST`, also in FILE.answers
    python workloads.py NAME --train FILE                      steps for ever, a line each in FILE: `I SECONDS DIGEST`, when it was done
    python workloads.py NAME --train FILE --ahead N            so, with N steps enqueued behind the one that is waited for

Weights are random but seeded; what is measured does not depend on them.
"""

import itertools
import os
import sys

import collectives  # noqa: F401
import loops  # noqa: F401
from registry import WORKLOADS, torch_module, workload
from running import WARM_UP, main

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def inference(torch, model, make_input, result):
    model = model.eval().cuda()
    print(f"weights {sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))}", flush=True)
    generator = torch.Generator(device="cuda").manual_seed(1)
    x = make_input(torch, generator)

    def step(i):
        with torch.inference_mode():
            return result(model(x.roll(i, -1)))

    return step


def tokens(n, vocabulary):
    return lambda torch, g: torch.randint(0, vocabulary, (1, n), device="cuda", generator=g)


def picture(torch, g):
    return torch.randn(1, 3, 224, 224, device="cuda", generator=g)


def vision(name):
    def build():
        torch = torch_module()
        import torchvision

        return inference(torch, getattr(torchvision.models, name)(), picture, lambda y: y)

    return build


for _name in ("resnet18", "resnet152"):
    workload(_name)(vision(_name))


@workload("hello")
def hello():
    torch = torch_module()
    a = torch.randn(64, 64, device="cuda")
    return lambda i: torch.addmm(a, a + i, a)


@workload("bert-base")
def bert():
    torch = torch_module()
    from transformers import BertConfig, BertModel

    return inference(torch, BertModel(BertConfig()), tokens(512, 30000), lambda y: y.last_hidden_state[0, :8])


@workload("opt-350m")
def opt():
    torch = torch_module()
    from transformers import OPTConfig, OPTForCausalLM

    shape = dict(hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16, word_embed_proj_dim=512, do_layer_norm_before=False)
    return inference(torch, OPTForCausalLM(OPTConfig(**shape)), tokens(1024, 30000), lambda y: y.logits[0, -2:])


@workload("gpt2-large")
def gpt2_large():
    torch = torch_module()
    from transformers import GPT2Config, GPT2LMHeadModel

    return inference(torch, GPT2LMHeadModel(GPT2Config(n_embd=1280, n_layer=36, n_head=20)), tokens(1024, 50000), lambda y: y.logits[0, -2:])


@workload("llama")
def llama():
    """A chat service: each answer is 16 tokens that `generate` chooses, with the cache of keys and values growing."""
    torch = torch_module()
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
    return chat(torch, LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).eval().cuda())


@workload("llama-20gb")
def llama_20gb():
    """As `llama`, with weights of 20 GB, which are made on the GPU."""
    torch = torch_module()
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=40, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**shape))
    return chat(torch, model.eval())


def chat(torch, model):
    print(f"weights {sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))}", flush=True)
    prompt = torch.randint(0, 128000, (1, 200), device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))

    def step(i):
        with torch.inference_mode():
            return model.generate(prompt.roll(i, -1), max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0)[:, -16:]

    return step


def gpt2_training(batch, length, **shape):
    torch = torch_module()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager", **shape)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def step(i):
        x = torch.randint(0, 50000, (batch, length), device="cuda", generator=generator)
        loss = model(x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@workload("gpt2-train")
def gpt2_train():
    return gpt2_training(4, 512)


@workload("gpt2-large-train")
def gpt2_large_train():
    return gpt2_training(4, 512, n_embd=1280, n_layer=36, n_head=20)


def large_model(torch, device):
    """Layers whose weights, gradients and two moments, 4 bytes each, take so many gigabytes in all."""
    gigabytes = float(os.environ.get("REKINDLE_BENCH_GB", "25"))
    count = max(1, round(gigabytes * 1e9 / 16 / 8192**2))
    return torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False, device=device) for _ in range(count)))


def state_sums(torch, model, optimizer):
    """Sums that any changed bit of weights, gradients and moments shows in."""
    parameters = list(model.parameters())
    moments = [optimizer.state[one][name] for one in parameters for name in ("exp_avg", "exp_avg_sq")]
    tensors = [*parameters, *(one.grad for one in parameters), *moments]
    return torch.stack([one.detach().view(torch.int32).sum(dtype=torch.int64) for one in tensors])


def language_server(layers, cached):
    """As one that serves a large language model: weights that nothing writes to, 0.54 GB a layer, and a cache, 2 MB an entry, of
    which each answer writes one. An answer depends on the ones before."""
    torch = torch_module()
    width, rows = 16384, 64
    layers = [torch.randn(width, width, dtype=torch.bfloat16, device="cuda") for _ in range(layers)]
    cache = torch.zeros(cached, rows, width, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
    count = itertools.count()

    def step(_):
        number = next(count)
        with torch.inference_mode():
            y = x + number + cache[(number - 1) % len(cache)]
            for layer in layers:
                y = torch.nn.functional.normalize(y @ layer, dim=-1)
            cache[number % len(cache)] = y
        return y

    return step


@workload("llm")
def llm():
    """28 GB of weights, 4 GB of cache."""
    return language_server(56, 2048)


@workload("llm-120")
def llm_120():
    """As most servers, it takes what the GPU has for its cache: 92 GB of weights, 27 GB of cache, of which little is used."""
    return language_server(172, 12800)


@workload("encoder-train")
def encoder_train():
    """Training that asks the GPU for nothing, so that steps are enqueued ahead of it. (In the one above `transformers` waits for the GPU
    in each step.)"""
    torch = torch_module()
    width, heads = 1280, 20

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.attended, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            apart = self.attended(self.before(x)).unflatten(-1, (3, heads, -1))
            query, key, value = apart.permute(2, 0, 3, 1, 4)
            weights = torch.softmax(query @ key.transpose(-1, -2) / 8, -1)
            x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
            return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))

    model = torch.nn.Sequential(*(Layer() for _ in range(36))).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def step(i):
        loss = model(torch.randn(4, 512, width, device="cuda", generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@workload("train-large")
def train_large():
    """In the middle of training. An answer is the next gradients, and sums over all that the GPU holds."""
    torch = torch_module()
    model = large_model(torch, "cuda")
    optimizer = torch.optim.Adam(model.parameters(), 1e-5, fused=True)
    x = torch.randn(32, 8192, device="cuda")

    def step(i):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        return torch.cat([state_sums(torch, model, optimizer).cpu(), loss.detach().view(torch.int32).long().cpu().view(1)]).numpy()

    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return step


def two_tensors(count, copied):
    """A tensor on each of two GPUs; where they are copied, each goes to the other's GPU in every step."""

    def build():
        torch = torch_module()
        a, b = (torch.randn(count, device=f"cuda:{n}") for n in range(2))

        def step(i):
            first, second = (b.to(a.device), a.to(b.device)) if copied else (a, b)
            return torch.stack([(a + first).double().sum().cpu(), (b - second * 2).double().sum().cpu()]).numpy()

        return step

    return build


for _size, _count in (("", 1 << 24), ("-large", 1 << 27)):
    workload(f"separate-two{_size}")(two_tensors(_count, copied=False))
    workload(f"copy-two{_size}")(two_tensors(_count, copied=True))


@workload("split-two")
def split_two():
    """Training of a model whose first half is on one GPU and whose second half is on the other."""
    torch = torch_module()
    layers = lambda n: torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True) for _ in range(4))).to(f"cuda:{n}")
    first, second = layers(0), layers(1)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], 1e-4)
    x, y = torch.randn(8, 128, 512, device="cuda:0"), torch.randn(8, 128, 512, device="cuda:1")

    def step(i):
        optimizer.zero_grad()
        loss = (second(first(x).to("cuda:1")) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@workload("busy")
def busy():
    """After its warm-up each answer takes a kernel of a quarter of a minute, at the clock's highest rate."""
    torch = torch_module()
    calls = itertools.count()

    def step(i):
        torch.cuda._sleep(15 * 2_000_000_000 if next(calls) >= WARM_UP else 1000)
        return torch.ones(1, device="cuda")

    return step


@workload("cuda-graph")
def cuda_graph():
    torch = torch_module()
    x = torch.randn(256, 256, device="cuda")
    weights = torch.randn(256, 256, device="cuda") / 16
    x @ weights
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ weights).relu().softmax(-1)

    def step(i):
        x.add_(0.01 * i)
        graph.replay()
        return y

    return step


@workload("torch-compile", TORCHINDUCTOR_COMPILE_THREADS="1")
def torch_compile():
    torch = torch_module()
    function = torch.compile(lambda a: (a.sin() * a.cos()).softmax(-1) @ a)
    a = torch.randn(256, 256, device="cuda")
    return lambda i: function(a + i)


@workload("fft")
def fft():
    """Plans of several lengths: tables of cuFFT's own, and kernels that it loads as modules."""
    torch = torch_module()
    x = torch.randn(3, 30, 77, 64, device="cuda")

    def step(i):
        y = torch.fft.irfft(torch.fft.rfft((x + i)[0].flatten())[: 1000 + i])
        return torch.cat([torch.fft.fftn(x + i, dim=(1, 2, 3)).abs().flatten(), y])

    return step


@workload("profiler")
def profiler():
    """Each step under torch.profiler, which asks for the GPU's part too."""
    torch = torch_module()
    from torch.profiler import ProfilerActivity, profile

    weights = torch.randn(1024, 1024, device="cuda")

    def step(i):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            result = (weights @ weights.roll(i)).relu()
            torch.cuda.synchronize()
        if "aten::matmul" not in {event.name for event in profiled.events()}:
            raise RuntimeError("the profiler saw nothing of the CPU's part")
        return result

    return step


@workload("sdpa-bf16")
def sdpa():
    torch = torch_module()
    q = torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16)
    return lambda i: torch.nn.functional.scaled_dot_product_attention(q + i * 0.1, q, q, is_causal=True)


def churn():
    torch = torch_module()
    kept = []

    def step(i):
        kept.append(torch.randn((1 << 20) + 4096 * i, device="cuda"))
        if len(kept) > 12:
            kept.pop(0)
        if i % 5 == 4:
            torch.cuda.empty_cache()
        return torch.stack([t.sum() for t in kept])

    return step


workload("expandable-segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")(churn)
workload("malloc-async", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")(churn)


@workload("pinned-async")
def pinned():
    torch = torch_module()
    source = torch.randn(1 << 22).pin_memory()
    back = torch.empty(1 << 22).pin_memory()
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def step(i):
        source[i] = i
        with torch.cuda.stream(stream):
            start.record(stream)
            on_gpu = source.to("cuda", non_blocking=True) * 2
            back.copy_(on_gpu, non_blocking=True)
            end.record(stream)
        end.synchronize()
        assert start.elapsed_time(end) > 0
        return back

    return step


@workload("dataloader")
def dataloader():
    torch = torch_module()
    data = torch.utils.data.TensorDataset(torch.randn(4096, 32))
    model = torch.nn.Linear(32, 8).cuda()

    def batches():
        while True:
            loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, pin_memory=True)
            for (batch,) in loader:
                yield batch

    source = batches()
    return lambda i: model(next(source).cuda(non_blocking=True))


@workload("cupy")
def cupy_kernels():
    import cupy as cp

    cp.random.seed(0)
    a = cp.random.rand(512, 512)
    code = 'extern "C" __global__ void scale(double *a, int n, double f) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] = a[i] * f + 0.25; }'
    scale = cp.RawKernel(code, "scale")

    def step(i):
        scale((1024,), (256,), (a, cp.int32(a.size), cp.float64(0.5)))
        return cp.asnumpy((a @ a).sum(axis=0))

    return step


@workload("jax", XLA_PYTHON_CLIENT_PREALLOCATE="false", XLA_FLAGS="--xla_gpu_deterministic_ops=true")
def jax_jit():
    import jax
    import jax.numpy as jnp
    import numpy as np

    function = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(axis=0))
    x = jax.random.normal(jax.random.key(0), (256, 256))
    return lambda i: np.asarray(function(x + i))


if __name__ == "__main__":
    sys.exit(main(WORKLOADS, __doc__.splitlines()[0]))
