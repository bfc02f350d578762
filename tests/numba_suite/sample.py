"""The modules that `make test` runs: some of every folder, for every kind of feature, in about a minute and a half on two cores.

`make numba-suite` runs them all and writes what the sample is compared with.
"""

MODULES = {
    "core": ("itanium_mangler", "serialize"),
    "cudadrv": (
        "context_stack",
        "cuda_array_slicing",
        "cuda_devicerecord",
        "cuda_driver",
        "cuda_memory",
        "cuda_ndarray",
        "deallocations",
        "emm_plugins",
        "events",
        "host_alloc",
        "linker",
        "managed_alloc",
        "module_callbacks",
        "pinned",
        "reset_device",
        "streams",
    ),
    "cudapy": (
        "cooperative_groups",
        "debug",
        "exception",
        "gufunc",
        "ipc",
        "localmem",
        "multithreads",
        "reduction",
        "sm",
        "stream_api",
        "sync",
        "userexc",
        "vectorize_decor",
        "warp_ops",
    ),
    "nrt": ("nrt_refct",),
    "doc_examples": ("cg", "matmul", "vecadd"),
}

NAMES = tuple(f"{folder}.test_{module}" for folder, modules in MODULES.items() for module in modules)
