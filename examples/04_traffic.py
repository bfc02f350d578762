"""A workflow that spreads: what is found in a frame goes to the models that look closer at it, and comes together again.

    rekindle deploy examples/04_traffic.py
    python examples/04_traffic.py
    rekindle run -- python examples/04_traffic.py --local

                      ┌═▶ classify (vehicles) ─┐
    frame ─▶ detect ══╪═▶ identify (people) ───┼─▶ report
                      └═▶ read (plates) ───────┘          ═ what was cut out of the frame stays on the GPU

How many vehicles and people there are is known once the frame has been looked at; there may be none.
The workflow is one of StreamBox's (USENIX ATC 2024, section 9): detection of vehicles and people, then of each what it is, who
it is, and its licence plate.
"""

import sys

import models
import numpy as np
import rekindle

app = rekindle.App("traffic")


@app.cls(**models.OPTIONS)
class Detector:
    @rekindle.enter()
    def load(self):
        self.reader, self.detector = models.load("Reader"), models.load("Detector")
        self.detect(models.picture(0))

    @rekindle.method()
    def detect(self, pixels: np.ndarray) -> dict:
        """What was cut out of the frame, each of (count, 3, side, side) on the GPU."""
        vehicles, people = self.detector(self.reader(pixels))
        return {"vehicles": vehicles, "people": people}


@app.cls(**models.OPTIONS)
class Vehicles:
    @rekindle.enter()
    def load(self):
        self.classifier = models.load("Classifier")
        self.classifier(models.load("Detector")(models.load("Reader")(models.picture(0)))[0])

    @rekindle.method()
    def classify(self, detected) -> list[int]:
        return self.classifier(detected["vehicles"])


@app.cls(**models.OPTIONS)
class People:
    @rekindle.enter()
    def load(self):
        self.recogniser = models.load("Recogniser")
        self.recogniser(models.load("Detector")(models.load("Reader")(models.picture(0)))[1])

    @rekindle.method()
    def identify(self, detected) -> list[int]:
        return self.recogniser(detected["people"])


@app.cls(**models.OPTIONS)
class Plates:
    @rekindle.enter()
    def load(self):
        self.plates = models.load("PlateReader")
        self.plates(models.load("Detector")(models.load("Reader")(models.picture(0)))[0])

    @rekindle.method()
    def read(self, detected) -> list[str]:
        return self.plates(detected["vehicles"])


@app.function(**models.OPTIONS)
def report(kinds: list[int], people: list[int], plates: list[str]) -> dict:
    return {"vehicles": [{"kind": kind, "plate": plate} for kind, plate in zip(kinds, plates, strict=True)], "people": people}


flow = app.workflow("frame", least=models.LEAST)
detected = flow.step(Detector().detect)
flow.step(report, flow.step(Vehicles().classify, detected), flow.step(People().identify, detected), flow.step(Plates().read, detected))


def request(seed: int) -> tuple:
    """What the workflow is called with."""
    return (models.picture(seed),)


if __name__ == "__main__":
    found = (flow.local if "--local" in sys.argv else flow.remote)(*request(7))
    for vehicle in found["vehicles"]:
        print(f"vehicle of kind {vehicle['kind']}, plate {vehicle['plate']}")
    print(f"people {', '.join(map(str, found['people'])) or 'none'}", flush=True)
