"""The modules that `make test` runs: some of every folder, for every kind of feature, and of those the ones that take least.

`make numba-suite` runs them all and writes what the sample is compared with.
"""

MODULES = {
    "core": ("itanium_mangler",),
    "cudadrv": (
        "context_stack",
        "cuda_array_slicing",
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
    ),
    "cudapy": (
        "debug",
        "exception",
        "ipc",
        "localmem",
        "multithreads",
        "stream_api",
        "vectorize_decor",
        "warp_ops",
    ),
    "nrt": ("nrt_refct",),
    "doc_examples": ("cg", "matmul"),
}

NAMES = tuple(f"{folder}.test_{module}" for folder, modules in MODULES.items() for module in modules)
