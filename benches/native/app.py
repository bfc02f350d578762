"""The same in Python: each instance is a process in a sandbox of its own."""

import os
import time

import rekindle

app = rekindle.App("python")
OPTIONS = {"gpu": os.environ["BENCH_GPU"], "share": False, "scaledown_window": 600}


@app.function(**OPTIONS)
def same(value):
    return value


@app.cls(max_containers=3, **OPTIONS)
class Held:
    @rekindle.enter()
    def stream(self):
        """What an instance in C has from its start: a context and a stream."""
        from rekindle import driver

        driver.enter_context()

    @rekindle.method()
    def hold(self, milliseconds):
        time.sleep(milliseconds / 1000)
