"""A language model whose next byte depends on the last one, in a table on the GPU: for tests of what is served around it."""

import numpy
import rekindle
from numba import cuda
from rekindle.inference import ByteTokenizer

app = rekindle.App("bigram")
END = ByteTokenizer.ends[0]
LIKELY, SECOND = 8.0, 5.0


def table():
    """Letters follow each other, then comes a character of three bytes, and the end. Digits go round for ever."""
    found = numpy.zeros((END + 1, END + 1), "float32")
    chain = [*b"abcdefghijklmnopqrstuvwxyz", *"雨".encode(), *b"!", END]
    for last, following in (*zip(chain, chain[1:]), *zip(b"0123456789", b"1234567890"), *((other, ord("a")) for other in b" :\n")):
        found[last, following] = LIKELY
        found[last, ord("?")] = SECOND
    return found


@cuda.jit
def rows(table, last, found):
    at = cuda.grid(1)
    if at < found.size:
        width = table.shape[1]
        found[at // width, at % width] = table[last[at // width], at % width]


class Bigrams:
    slots, context = 4, 100000
    tokenizer = ByteTokenizer()

    def __init__(self):
        self.table = cuda.to_device(table())
        self.active, self.broken, self.widest, self.steps = set(), set(), 0, 0

    def logits(self, tokens):
        found = cuda.device_array((len(tokens), END + 1), "float32")
        rows[1 + found.size // 256, 256](self.table, cuda.to_device(numpy.array(tokens, "int32")), found)
        return found.copy_to_host()

    def begin(self, slot, tokens):
        assert slot not in self.active
        if bytes(tokens).startswith(b"fail"):
            raise MemoryError("no room for this prompt")
        self.active.add(slot)
        if bytes(tokens).startswith(b"break"):
            self.broken.add(slot)
        return self.logits(tokens[-1:])[0]

    def advance(self, tokens):
        assert set(tokens) <= self.active
        if self.broken & set(tokens):
            raise ArithmeticError("this step cannot be")
        self.widest, self.steps = max(self.widest, len(tokens)), self.steps + 1
        return dict(zip(tokens, self.logits(list(tokens.values()))))

    def end(self, slot):
        self.active.discard(slot)
        self.broken.discard(slot)


@app.cls(gpu="emulated", concurrency=32)
class Model:
    @rekindle.enter()
    def load(self):
        self.engine = Bigrams()
        self.engine.logits([0])

    @rekindle.method()
    def state(self):
        return sorted(self.engine.active), self.engine.widest, self.engine.steps

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.openai_app(self.engine, name="bigram")
