"""A function of the benchmark as a class of Rekindle's; which one, and how, the environment says.

EDAS_FUNCTION names it. EDAS_DATA is `declared`: its object is declared data, which comes from the store when an instance wants it;
or `image`: the object is on the GPU when the image is taken. EDAS_SHARE: with whom it shares contexts, if with anybody. EDAS_MODE:
`driver` if the driver is to take the GPU half.
"""

import json
import os
import sys
import time
from pathlib import Path

import rekindle

sys.path[:0] = [str(Path(__file__).resolve().parent)]
NAME, GPU, WORK = os.environ["EDAS_FUNCTION"], os.environ["EDAS_GPU"], Path(os.environ["EDAS_WORK"])
ROW = json.loads((WORK / f"{NAME}.json").read_text())
IS_DECLARED = os.environ["EDAS_DATA"] == "declared"
DATA = {"weights": rekindle.Data(ROW["url"], dtype="uint8", shape=ROW["bytes"])} if IS_DECLARED else {}
# What the driver takes cannot sleep.
REST = {"mode": mode} if (mode := os.environ["EDAS_MODE"]) else {"sleep_window": float(os.environ["EDAS_ASLEEP"])}

app = rekindle.App(f"edas-{NAME}")


@app.cls(
    gpu=GPU,
    data=DATA,
    share=os.environ["EDAS_SHARE"] or False,
    concurrency=1,
    max_containers=ROW["most"],
    scaledown_window=float(os.environ["EDAS_IDLE"]),
    **REST,
    max_queue=10000,
    queue_timeout=120,
)
class Served:
    @rekindle.enter()
    def prepare(self):
        import catalogue
        import numpy
        import objects

        plan = {tensor: objects.Placed(*words) for tensor, words in ROW["plan"].items()}
        self.function = catalogue.build(catalogue.entries(GPU)[NAME], WORK / "kernels", plan)
        self.function.open()
        self.function.rehearse(ROW["bytes"])
        self.is_loaded = not IS_DECLARED
        if self.is_loaded:
            self.function.take_host(numpy.fromfile(ROW["file"], "uint8"))

    @rekindle.method()
    def answer(self, request):
        """The answer, and seconds: until the data are named, and until it is computed, which the data are waited for in."""
        start = time.perf_counter()
        first = not self.is_loaded
        if first:
            self.function.take_gpu(self.weights.load())
            self.is_loaded = True
        named = time.perf_counter()
        answer = self.function.compute(request)
        return {"answer": answer, "first": first, "load": named - start, "compute": time.perf_counter() - named}
