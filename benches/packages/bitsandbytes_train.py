"""bitsandbytes: training with its 8-bit and its paged optimizer, beside layers of 4 and 8 bits."""

import bitsandbytes as bnb
import steps
import torch

WIDTH = 1024
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
four = bnb.nn.Linear4bit(WIDTH, WIDTH, compute_dtype=torch.bfloat16, quant_type="nf4").cuda()
eight = bnb.nn.Linear8bitLt(WIDTH, WIDTH, has_fp16_weights=False).cuda()
# The second one's state is managed memory.
optimizers = bnb.optim.Adam8bit(model.parameters(), lr=1e-3), bnb.optim.PagedAdamW(model.parameters(), lr=1e-4)
x = torch.randn(64, WIDTH, device="cuda")


def step(number):
    optimizer = optimizers[number % 2]
    optimizer.zero_grad()
    hidden = model(x)
    loss = hidden.square().mean() + (four(hidden.bfloat16()) + eight(hidden.half()).bfloat16()).float().abs().mean()
    loss.backward()
    optimizer.step()
    return steps.digest(loss.detach().cpu().numpy())


steps.make(step)
