"""diffusers: pictures by a small latent diffusion model, ten steps of DDIM each."""

import steps
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
DOWN, UP = ("CrossAttnDownBlock2D",) * 2 + ("DownBlock2D",), ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 2
unet = UNet2DConditionModel(sample_size=64, block_out_channels=(128, 256, 256), down_block_types=DOWN, up_block_types=UP, cross_attention_dim=512)
decoder = AutoencoderKL(block_out_channels=(64, 128), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
unet, decoder = unet.half().cuda().eval(), decoder.half().cuda().eval()
scheduler = DDIMScheduler()
scheduler.set_timesteps(10)
text = torch.randn(1, 77, 512, device="cuda", dtype=torch.half)


@torch.inference_mode()
def step(number):
    latent = torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.half, generator=torch.Generator("cuda").manual_seed(number))
    for time in scheduler.timesteps:
        latent = scheduler.step(unet(latent, time, text).sample, time, latent).prev_sample
    return steps.digest(decoder.decode(latent).sample.cpu().numpy())


steps.make(step)
