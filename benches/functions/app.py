"""A function that does nothing: what is measured is the way to it."""

import rekindle

app = rekindle.App("bench")


@app.cls(share=False, concurrency=4, max_containers=1)
class Empty:
    @rekindle.method()
    def same(self, value):
        return value
