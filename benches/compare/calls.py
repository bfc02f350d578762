"""Calls of libraries, each as its users write it; all of them twice, with a pause in the middle.

    python calls.py torch|jax FILE      prints a line for each call, then `ready`, waits for FILE, and makes all calls again

A line is `call`, the call's name, `first` or `second`, and its result or what it raised, with tabs between.
"""

import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def jax_calls():
    import jax
    import jax.numpy as jnp
    import jax.scipy as jsp
    from jax.experimental import pallas

    key = jax.random.PRNGKey(0)
    a = jax.random.normal(key, (64, 64))
    symmetric, image = a + a.T, a.reshape(1, 1, 64, 64)
    half = [jax.random.normal(key, (2, 64, 4, 32), dtype=jnp.bfloat16)] * 3

    def scan(x):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ a / 8), carry.sum()), x, None, length=20)[1].sum()

    def doubled(x):
        return jax.pure_callback(lambda y: y * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def add(x, y, out):
        out[...] = x[...] + y[...]

    def sampled():
        import numpyro
        import numpyro.distributions as distributions
        from numpyro.infer import MCMC, NUTS

        def model():
            numpyro.sample("x", distributions.Normal(0, 1).expand([3]))

        chain = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)
        chain.run(key)
        return float(abs(chain.get_samples()["x"]).sum() > 0)

    arrays = {
        "svd": lambda: jnp.linalg.svd(a)[1],
        "eigh": lambda: jnp.linalg.eigh(symmetric)[0],
        "qr": lambda: jnp.linalg.qr(a)[0],
        "solve": lambda: jnp.linalg.solve(a, a),
        "cholesky": lambda: jnp.linalg.cholesky(symmetric @ symmetric.T + 10 * jnp.eye(64)),
        "fft2": lambda: jnp.fft.fft2(a),
        "lu": lambda: jsp.linalg.lu(a)[2],
        "expm": lambda: jsp.linalg.expm(a / 64),
        "conv": lambda: jax.lax.conv(image, jnp.ones((4, 1, 3, 3)), (1, 1), "SAME"),
        "gradient of a scan": lambda: jax.grad(scan)(a),
        "sort": lambda: jnp.sort(a, axis=None)[:10],
        "while_loop": lambda: jax.lax.while_loop(lambda x: x < 1e6, lambda x: x * 1.5, jnp.float32(1)),
        "cond": lambda: jax.jit(lambda x: jax.lax.cond(x.sum() > 0, lambda y: y.max(), lambda y: y.min(), x))(a),
        "gamma": lambda: jax.random.gamma(key, 2.0, (1000,)),
        "vmap of inv": lambda: jax.vmap(jnp.linalg.inv)(jnp.stack([symmetric + 20 * jnp.eye(64)] * 8)),
        "pmap": lambda: jax.pmap(lambda x: x * 2)(a[None]),
        "pure_callback": lambda: jax.jit(doubled)(a),
        "segment_sum": lambda: jax.ops.segment_sum(a, jnp.arange(64) % 5, 5),
        "bf16 product": lambda: (a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)).astype(jnp.float32),
        "attention": lambda: jax.nn.dot_product_attention(*half).astype(jnp.float32),
        "pallas": lambda: pallas.pallas_call(add, out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32))(a, a),
        "donated": lambda: jax.jit(lambda x: x + 1, donate_argnums=0)(a + 0),
    }
    return {name: lambda call=call: float(jnp.abs(call()).sum()) for name, call in arrays.items()} | {
        "memory_stats": lambda: float(jax.devices()[0].memory_stats()["bytes_in_use"] >= 0),
        "numpyro": sampled,
    }


def torch_calls():
    import torch
    import torch.nn.functional as functional
    import torchvision
    from torch import nn

    device = "cuda"
    torch.manual_seed(0)
    x = torch.randn(8, 3, 64, 64, device=device)
    square = torch.randn(5, 64, 64, device=device)
    boxes = torch.tensor([[0, 0, 30, 30.0], [1, 1, 31, 31.0], [40, 40, 60, 60.0]], device=device)

    def random(*shape, **options):
        return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(1), **options)

    def made(module, *arguments):
        torch.manual_seed(0)
        return module().to(device).eval()(*arguments)

    def amp():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 62 * 62, 10)).to(device)
        optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler()
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss

    def backward():
        weights = torch.ones(8, 8, device=device, requires_grad=True)
        torch.utils.checkpoint.checkpoint(lambda q: (q @ q).sum(), weights, use_reentrant=False).backward()
        return weights.grad

    def captured():
        y = random(4, 64)
        torch.manual_seed(0)
        return torch.cuda.make_graphed_callables(nn.Linear(64, 64).to(device), (y,))(y)

    def trees():
        torch.manual_seed(0)
        model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(device), mode="reduce-overhead")
        for _ in range(4):
            result = model(torch.ones(4, 64, device=device)).sum().item()
        return result

    def one_of_one():
        import torch.distributed as distributed

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29600 + os.getpid() % 300))
        distributed.init_process_group("nccl", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to(device))
        model(torch.ones(2, 8, device=device)).sum().backward()
        distributed.destroy_process_group()
        return model.module.weight.grad

    def pooled():
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            return torch.ones(10, device=device)

    def between_streams():
        side = torch.cuda.Stream(priority=-1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return result

    def timed():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        x.sum()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end) >= 0)

    def mixture():
        from transformers import MixtralConfig, MixtralForCausalLM

        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=100, num_local_experts=4)
        model = MixtralForCausalLM(config).to(device)
        return model.generate(torch.ones(1, 4, dtype=torch.long, device=device), max_new_tokens=4, do_sample=False).float()

    def benched():
        from triton.testing import do_bench

        return float(do_bench(lambda: x + 1) > 0)

    def flexible():
        from torch.nn.attention.flex_attention import flex_attention

        q = random(1, 2, 128, 64)
        return torch.compile(flex_attention)(q, q, q)

    def half_sparse():
        dense = torch.tensor([0, 0, 1, 1] * 32, device=device).half().repeat(128, 1)
        return torch.sparse.to_sparse_semi_structured(dense) @ dense.mT

    linalg = {
        "svdvals": torch.linalg.svdvals,
        "eigvals": lambda m: torch.linalg.eigvals(m).abs(),
        "eigvalsh": lambda m: torch.linalg.eigvalsh(m + m.mT),
        "qr": lambda m: torch.linalg.qr(m)[1],
        "lu": lambda m: torch.linalg.lu(m)[1],
        "inv": lambda m: torch.linalg.inv(m + 20 * torch.eye(64, device=device)),
        "lstsq": lambda m: torch.linalg.lstsq(m, m)[0],
        "matrix_exp": lambda m: torch.linalg.matrix_exp(m / 64),
        "norm 2": lambda m: torch.linalg.norm(m[0], 2),
    }
    jitted = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x * x; }")
    return {f"linalg.{name}": lambda call=call: call(square) for name, call in linalg.items()} | {
        "amp": amp,
        "nms": lambda: torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7], device=device), 0.5).float(),
        "roi_align": lambda: torchvision.ops.roi_align(x, [boxes[:1]] * 8, (7, 7)),
        "deform_conv2d": lambda: torchvision.ops.deform_conv2d(x, torch.zeros(8, 18, 62, 62, device=device), random(4, 3, 3, 3)),
        "vit_b_16": lambda: made(torchvision.models.vit_b_16, torch.ones(1, 3, 224, 224, device=device)),
        "irfft2": lambda: torch.fft.irfft2(torch.fft.rfft2(x)),
        "stft": lambda: torch.stft(random(4000), 256, return_complex=True, window=torch.hann_window(256, device=device)).abs(),
        "sparse product": lambda: random(64, 64).relu().to_sparse() @ square[0],
        "semi-structured product": half_sparse,
        "embedding_bag": lambda: functional.embedding_bag(torch.arange(128, device=device).view(16, 8) % 100, random(100, 32)),
        "multinomial": lambda: float(torch.multinomial(torch.rand(1000, device=device), 10).numel()),
        "bicubic": lambda: functional.interpolate(x, scale_factor=2, mode="bicubic"),
        "conv3d": lambda: functional.conv3d(random(1, 2, 8, 8, 8), random(4, 2, 3, 3, 3)),
        "conv_transpose2d": lambda: functional.conv_transpose2d(x, random(3, 4, 3, 3)),
        "transformer": lambda: made(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2), random(2, 16, 64)),
        "gru": lambda: made(lambda: nn.GRU(16, 32, 2, bidirectional=True), random(7, 3, 16))[0],
        "make_graphed_callables": captured,
        "compile, reduce-overhead": trees,
        "compile, flex_attention": flexible,
        "nccl of one": one_of_one,
        "MemPool": pooled,
        "streams": between_streams,
        "events": timed,
        "ipc handle": lambda: float(len(torch.ones(4, device=device).untyped_storage()._share_cuda_()) > 0),
        "pinned": lambda: torch.ones(1000).pin_memory().to(device, non_blocking=True),
        "jiterator": lambda: jitted(torch.arange(10.0, device=device)),
        "do_bench": benched,
        "mixtral": mixture,
        "nested_tensor": lambda: torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], device=device).to_padded_tensor(0),
        "vmap of inv": lambda: torch.func.vmap(torch.linalg.inv)(torch.eye(8, device=device).repeat(4, 1, 1) * 2),
        "checkpoint": backward,
        "mem_get_info": lambda: float(torch.cuda.mem_get_info()[1] > 0),
        "NVML": lambda: float(torch.cuda.memory_usage() >= 0),
        "_assert_async": lambda: torch._assert_async(torch.ones((), device=device)),
        "empty_cache": lambda: (torch.cuda.empty_cache(), torch.cuda.ipc_collect())[0],
    }


def result(call):
    """A sum of it, to six digits: kernels of libraries need not give the same last bits twice."""
    try:
        value = call()
        if hasattr(value, "abs"):
            value = value.double().abs().sum().item()
        return "" if value is None else f"{float(value):.6g}"
    except Exception as error:  # it is the result
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def main():
    calls = {"torch": torch_calls, "jax": jax_calls}[sys.argv[1]]()
    for when in ("first", "second"):
        for name, call in calls.items():
            print("call", name, when, result(call), sep="\t", flush=True)
        if when == "first":
            print("ready", flush=True)
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.005)


main()
