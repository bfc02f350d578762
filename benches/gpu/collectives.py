"""Programs whose GPUs do collectives: NCCL between two GPUs, in one process and between two, and by JAX."""

import atexit
import os

from registry import torch_module, workload


@workload("nccl-threads", NCCL_NVLS_ENABLE="0")
def nccl_threads():
    """NCCL between two GPUs of one process."""
    torch = torch_module()
    from torch.cuda import nccl

    given = [torch.full((1 << 20,), float(n + 1), device=f"cuda:{n}") for n in range(2)]

    def step(i):
        both = [one.clone() for one in given]
        nccl.all_reduce(both)
        return torch.cat([one.cpu() for one in both]).numpy()

    return step


@workload("nccl-processes", NCCL_NVLS_ENABLE="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0")
def nccl_processes():
    """NCCL between two processes with a GPU each, as `torchrun` starts them; they find each other by a file. Who ends first of all that
    came from one image removes it, and torch would look there for a request to dump until it is back."""
    torch = torch_module()
    import tempfile

    directory = tempfile.mkdtemp()
    read, write = os.pipe()
    rank = 0 if os.fork() else 1
    os.close(write if rank else read)
    torch.cuda.set_device(rank)
    store = torch.distributed.FileStore(f"{directory}/store", 2)
    torch.distributed.init_process_group("nccl", store=store, rank=rank, world_size=2)
    given = torch.full((1 << 20,), float(rank + 1), device="cuda")

    def reduced():
        x = given.clone()
        torch.distributed.all_reduce(x)
        return x.cpu().numpy()

    while rank:
        if not os.read(read, 1):
            torch.distributed.destroy_process_group()
            os._exit(0)
        reduced()

    @atexit.register
    def end():
        os.close(write)
        torch.distributed.destroy_process_group()

    def step(i):
        os.write(write, b"x")
        return reduced()

    return step


@workload(
    "jax-two", XLA_PYTHON_CLIENT_PREALLOCATE="false", NCCL_NVLS_ENABLE="0", XLA_FLAGS="--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
)
def jax_two():
    """Data-parallel training on two GPUs of one process: XLA has NCCL sum the gradients in each step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:2]), ("gpus",))
    spread, same = NamedSharding(mesh, PartitionSpec("gpus")), NamedSharding(mesh, PartitionSpec())
    keys = jax.random.split(jax.random.key(0), 6)
    weights = [jax.device_put(jax.random.normal(key, (1024, 1024)) / 32, same) for key in keys[:4]]
    x, y = (jax.device_put(jax.random.normal(key, (512, 1024)), spread) for key in keys[4:])

    def loss(weights, x, y):
        for layer in weights:
            x = jnp.tanh(x @ layer)
        return jnp.square(x - y).mean()

    @jax.jit
    def update(weights, x, y):
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return value, [layer - 0.1 * slope for layer, slope in zip(weights, slopes)]

    def step(i):
        nonlocal weights
        # Enqueued one behind the other.
        for _ in range(8):
            value, weights = update(weights, x, y)
        return np.asarray(value)

    return step
