"""A workflow of functions that hand on arrays on the GPU: who is in a picture, and the picture made larger.

    rekindle deploy examples/03_image.py
    python examples/03_image.py
    rekindle run -- python examples/03_image.py --local

    pixels ─▶ read ═▶ recognise ═▶ enhance ─▶ person, pixels          ═ the picture stays on the GPU

The functions have a GPU context in common, as those of an app do. The last command does all of it in one process, without any of them.
The workflow is one of StreamBox's (USENIX ATC 2024, section 9): face recognition followed by image enhancement.
"""

import hashlib
import sys

import models
import numpy as np
import rekindle

app = rekindle.App("image")


@app.cls(**models.OPTIONS)
class Pictures:
    @rekindle.enter()
    def load(self):
        self.reader = models.load("Reader")
        self.read(models.picture(0))

    @rekindle.method()
    def read(self, pixels: np.ndarray):
        """The picture on the GPU, float32 of (3, height, width)."""
        return self.reader(pixels)


# Two of them fit in the context, each of an image with addresses of its own.
@app.cls(**models.OPTIONS, variants=2)
class Faces:
    @rekindle.enter()
    def load(self):
        self.recogniser = models.load("Recogniser")
        self.recognise(models.load("Reader")(models.picture(0)))

    @rekindle.method()
    def recognise(self, picture):
        return {"picture": picture, "person": self.recogniser.one(picture)}


@app.cls(**models.OPTIONS)
class Enhancer:
    @rekindle.enter()
    def load(self):
        self.enhancer = models.load("Enhancer")
        self.enhance({"picture": models.load("Reader")(models.picture(0)), "person": 0})

    @rekindle.method()
    def enhance(self, found) -> dict:
        """The person's number, and pixels of the picture at twice its size, uint8 of (height, width, 3)."""
        return {"person": found["person"], "pixels": self.enhancer(found["picture"])}


flow = app.workflow("enlarge", least=models.LEAST)
flow.step(Enhancer().enhance, flow.step(Faces().recognise, flow.step(Pictures().read)))


def request(seed: int) -> tuple:
    """What the workflow is called with."""
    return (models.picture(seed),)


if __name__ == "__main__":
    found = (flow.local if "--local" in sys.argv else flow.remote)(*request(7))
    pixels = found["pixels"]
    print(f"person {found['person']}, {pixels.shape[1]} × {pixels.shape[0]} pixels, {hashlib.sha256(pixels.tobytes()).hexdigest()[:16]}", flush=True)
