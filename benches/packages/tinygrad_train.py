"""tinygrad: training of a small network with Adam, kernels compiled by NVRTC."""

import numpy as np
import steps
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context
from tinygrad.nn.optim import Adam

Tensor.manual_seed(1)
first, second = nn.Linear(16, 32), nn.Linear(32, 4)
optimizer = Adam([*nn.state.get_parameters(first), *nn.state.get_parameters(second)], lr=0.01)
random = np.random.default_rng(0)
x, y = Tensor(random.standard_normal((64, 16), np.float32)), Tensor(random.integers(0, 4, 64))


@TinyJit
def update():
    optimizer.zero_grad()
    loss = second(first(x).relu()).sparse_categorical_crossentropy(y)
    loss.backward()
    optimizer.step()
    return loss.realize()


with Context(TRAINING=1):
    steps.make(lambda number: steps.digest(update().numpy()))
