"""The functions: on an NVIDIA GPU twelve, or twice as many, in the shape of EDAS's (its Table 1), on the emulated one as many small ones.

EDAS's Llama has weights of one byte, its Bloom 2.8 billion; here both are in bfloat16. Its DeepSpeech and sequence-to-sequence
model of LSTMs are transformers here (Whisper's and T5's shapes). Smaller ones first: that is the order in which they are made.
"""

from dataclasses import dataclass
from pathlib import Path

import device
import science
from science import Kernels

__all__ = ["REQUESTS", "Entry", "Kernels", "build", "compile_kernels", "entries"]
# Requests are of these kinds; the answer of each is known.
REQUESTS = 4


@dataclass(frozen=True)
class Entry:
    kind: str
    arguments: tuple = ()
    # How many instances of it Rekindle may have.
    most: int = 4


TWELVE = {
    "tpacf": Entry("Pairs", (16384, 8)),
    "mri-q": Entry("Fourier", (1 << 18, 2048)),
    "lbm": Entry("Lattice", (120, 60)),
    "resnet50": Entry("resnet50"),
    "inception3": Entry("inception3"),
    "vgg11": Entry("vgg11"),
    "nasnet": Entry("nasnet"),
    "bert": Entry("bert"),
    "seq2seq": Entry("seq2seq"),
    "speech": Entry("speech"),
    "bloom-3b": Entry("bloom", most=2),
    "llama-7b": Entry("llama", most=2),
}
SMALL = {
    "tpacf-small": Entry("Pairs", (256, 4), 2),
    "mri-q-small": Entry("Fourier", (512, 64), 2),
    "lbm-small": Entry("Lattice", (8, 3), 2),
    **{f"dense-{number}": Entry("Dense", (128 + 64 * (number % 3), 2 * number), 2) for number in range(1, 10)},
}


def entries(gpu_name):
    """Twelve, and each of them once more under another name, with weights and data of its own."""
    once = SMALL if gpu_name.startswith("emulated") else TWELVE
    return once | {f"{name}-b": entry for name, entry in once.items()}


def build(entry, code, plan=None):
    """The function, on the host alone. `code` is a file of compiled kernels."""
    if entry.kind[0].islower():
        import models

        function = getattr(models, entry.kind)()
        function.plan = plan
        return function
    return getattr(science, entry.kind)(*entry.arguments, code.read_bytes(), plan)


def compile_kernels(file, gpu_name):
    """What functions without a framework need beforehand."""
    source = Path(__file__).with_name("kernels.cu").read_text()
    file.write_bytes(device.compiled(source, device.architecture(gpu_name)))
