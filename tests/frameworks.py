"""Frameworks, as far as Rekindle sees that a program has them."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "frameworks/allocator.c"
# What their allocators lie in.
LIBRARIES = {"torch": "libc10_cuda.so", "cupy": "cupy/cuda/memory.cpython.so"}


def allocator(framework, folder):
    """A library that counts as that of this framework's allocator."""
    library = folder / LIBRARIES[framework]
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library
