"""A torch model as a function: what `--model` calls."""

import numpy as np
import rekindle

app = rekindle.App("bench-model")


@app.cls(share="bench")
class Model:
    @rekindle.enter()
    def load(self):
        import torch
        import torchvision

        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.torch = torch
        self.model = torchvision.models.resnet152(weights=None).eval().cuda()
        for _ in range(3):
            self.classify(np.zeros((1, 3, 224, 224), np.float32))

    @rekindle.method()
    def classify(self, images: np.ndarray) -> np.ndarray:
        with self.torch.inference_mode():
            return self.model(self.torch.from_numpy(images.copy()).cuda()).cpu().numpy()
