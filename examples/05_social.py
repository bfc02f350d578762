"""A workflow that joins: a post's pictures and its text go to models of their own, and one more tells its topic from both.

    rekindle deploy examples/05_social.py
    python examples/05_social.py
    rekindle run -- python examples/05_social.py --local

           ┌─▶ look (pictures) ══┐
    post ──┤                     ├─▶ classify ─▶ topic          ═ the pictures' features stay on the GPU
           └─▶ translate (text) ─┘

The workflow is one of StreamBox's (USENIX ATC 2024, section 9): models of pictures and of language, which translate and classify
posts by their text and their pictures.
"""

import sys

import models
import numpy as np
import rekindle

app = rekindle.App("social")
TEXTS = ["guten Morgen aus den Bergen", "le train est en retard", "hoy ganamos el partido", "ny bok om maskiner"]


@app.cls(**models.OPTIONS)
class Pictures:
    @rekindle.enter()
    def load(self):
        self.encoder = models.load("PictureEncoder")
        self.look({"pictures": np.stack([models.picture(0)])})

    @rekindle.method()
    def look(self, post: dict):
        """Features of each picture, on the GPU."""
        return self.encoder(post["pictures"])


@app.cls(**models.OPTIONS)
class Translator:
    @rekindle.enter()
    def load(self):
        self.translator = models.load("Translator")
        self.translate({"text": TEXTS[0]})

    @rekindle.method()
    def translate(self, post: dict) -> list[int]:
        """Tokens of the translation."""
        return self.translator(post["text"])


@app.cls(**models.OPTIONS)
class Topics:
    @rekindle.enter()
    def load(self):
        self.topics = models.load("TopicClassifier")
        self.classify(models.load("PictureEncoder")(np.stack([models.picture(0)])), list(range(5)))

    @rekindle.method()
    def classify(self, features, tokens: list[int]) -> dict:
        scores = self.topics(features, tokens)
        return {"topic": int(scores.argmax()), "scores": scores, "translation": tokens}


flow = app.workflow("post", least=models.LEAST)
flow.step(Topics().classify, flow.step(Pictures().look), flow.step(Translator().translate))


def request(seed: int) -> tuple:
    """What the workflow is called with: a post of one to four pictures."""
    pictures = np.stack([models.picture(10 * seed + number) for number in range(1 + seed % 4)])
    return ({"text": TEXTS[seed % len(TEXTS)], "pictures": pictures},)


if __name__ == "__main__":
    found = (flow.local if "--local" in sys.argv else flow.remote)(*request(7))
    print(f"topic {found['topic']}, scores {' '.join(f'{score:.3f}' for score in found['scores'])}")
    print(f"translation {' '.join(map(str, found['translation']))}", flush=True)
