"""A function in torch, as it is told to.

make     LAYERS WIDTH BATCH   layers of an encoder, and a batch for it
request  PAUSES MS            one inference, with so many pauses of so many ms between its layers: seconds without the pauses, a sum
kept                          bytes that torch's allocator holds, and those of them that are in use
"""

import hashlib
import time

import torch
from lines import obey

SEQUENCE = 256


class Function:
    def make(self, layers, width, batch):
        torch.manual_seed(0)
        one = dict(d_model=width, nhead=width // 64, dim_feedforward=4 * width, batch_first=True, device="cuda", dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(**one) for _ in range(layers)).eval()
        self.batch = torch.randn(batch, SEQUENCE, width, device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        return {}

    @torch.inference_mode()
    def request(self, pauses, milliseconds):
        began, paused = time.perf_counter(), 0.0
        values = self.batch
        for number, layer in enumerate(self.layers):
            # What one layer gives the next is kept; what it needs beside that is not.
            values = layer(values)
            if number < pauses:
                torch.cuda.synchronize()
                at = time.perf_counter()
                time.sleep(milliseconds / 1000)
                paused += time.perf_counter() - at
        found = values.float().sum(dim=(1, 2)).cpu().numpy().tobytes()
        return {"s": time.perf_counter() - began - paused, "sum": hashlib.sha256(found).hexdigest()}

    def kept(self):
        return {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}


obey(Function())
