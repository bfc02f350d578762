"""Networks of torchvision, timm and transformers with random weights, for an NVIDIA GPU.

Pictures are float32 of (channels, height, width), several of them of (count, channels, height, width), all from 0 to 1.
"""

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch.nn import functional

DEVICE = "cuda"
PEOPLE, KINDS, TOPICS, LETTERS = 1000, 196, 20, "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
CROP, WORDS, MOST_FOUND = 224, 16, 16

# So that each process finds the same.
torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def on_gpu(array):
    """An array as torch takes it: it may come from another function, or from the host."""
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(DEVICE)
    return torch.from_dlpack(array)


def made(seed, make):
    """A network with the random weights of this seed."""
    torch.manual_seed(seed)
    return make().eval().requires_grad_(False).to(DEVICE)


def resized(pictures, *size):
    return functional.interpolate(pictures, size, mode="bilinear")


class Reader:
    def __call__(self, pixels):
        return on_gpu(pixels).permute(2, 0, 1).contiguous().float() / 255


class Recogniser:
    """The nearest of the people that are known, for each face: a vision transformer."""

    def __init__(self, seed=1):
        self.network = made(seed, lambda: timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=512))
        self.known = functional.normalize(torch.randn(PEOPLE, 512, generator=torch.Generator().manual_seed(seed))).to(DEVICE)

    def one(self, face):
        return self(on_gpu(face)[None])[0]

    @torch.inference_mode()
    def __call__(self, faces):
        if not faces.shape[0]:
            return []
        found = self.network(resized(on_gpu(faces), 224, 224))
        return (found @ self.known.T).argmax(1).tolist()


class Enhancer:
    """Swin2SR in its light form, for twice the size."""

    def __init__(self, seed=2):
        shape = {"embed_dim": 60, "depths": [6, 6, 6, 6], "num_heads": [6, 6, 6, 6], "mlp_ratio": 2.0, "upsampler": "pixelshuffledirect"}
        self.network = made(seed, lambda: transformers.Swin2SRForImageSuperResolution(transformers.Swin2SRConfig(**shape)))

    @torch.inference_mode()
    def __call__(self, picture):
        """Pixels, uint8 of (height, width, channels)."""
        larger = self.network(resized(on_gpu(picture)[None], 256, 256)).reconstruction[0]
        return (larger.clamp(0, 1).permute(1, 2, 0) * 255).round().to(torch.uint8).cpu().numpy()


class Detector:
    """SSDlite. With random weights what it finds has any label: the even ones stand for vehicles, the odd ones for people."""

    def __init__(self, seed=3):
        limits = {"score_thresh": 0.001, "topk_candidates": 20, "detections_per_img": MOST_FOUND}
        make = torchvision.models.detection.ssdlite320_mobilenet_v3_large
        self.network = made(seed, lambda: make(weights=None, weights_backbone=None, **limits))

    @torch.inference_mode()
    def __call__(self, picture):
        """What was cut out of the vehicles and of the people, each of (count, channels, CROP, CROP)."""
        picture = on_gpu(picture)
        found = self.network([picture])[0]
        cuts = torchvision.ops.roi_align(picture[None], [found["boxes"]], (CROP, CROP))
        return tuple(cuts[found["labels"] % 2 == kind].contiguous() for kind in (0, 1))


class Classifier:
    """ConvNeXt."""

    def __init__(self, seed=4):
        self.network = made(seed, lambda: torchvision.models.convnext_tiny(weights=None, num_classes=KINDS))

    @torch.inference_mode()
    def __call__(self, vehicles):
        return self.network(on_gpu(vehicles)).argmax(1).tolist() if vehicles.shape[0] else []


class PlateReader:
    """ConvNeXt's features over the breadth of a plate, a letter for each column."""

    def __init__(self, seed=5):
        self.features = made(seed, lambda: torchvision.models.convnext_tiny(weights=None).features)
        self.letters = made(seed, lambda: torch.nn.Linear(768, len(LETTERS)))

    @torch.inference_mode()
    def __call__(self, vehicles):
        if not vehicles.shape[0]:
            return []
        columns = self.features(resized(on_gpu(vehicles), 64, 256)).mean(2).permute(0, 2, 1)
        return ["".join(LETTERS[at] for at in plate) for plate in self.letters(columns).argmax(2).tolist()]


class PictureEncoder:
    """A vision transformer."""

    def __init__(self, seed=6):
        self.network = made(seed, lambda: timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=0))

    @torch.inference_mode()
    def __call__(self, pictures):
        """Features of each, of (count, patches, channels), on the GPU."""
        pictures = on_gpu(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))).float() / 255
        return self.network.forward_features(resized(pictures, 224, 224)).contiguous()


class Translator:
    """Marian's shape. It has no vocabulary: tokens are bytes."""

    def __init__(self, seed=7):
        shape = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
        config = transformers.MarianConfig(**shape, encoder_attention_heads=8, decoder_attention_heads=8)
        self.network = made(seed, lambda: transformers.MarianMTModel(config))

    @torch.inference_mode()
    def __call__(self, text):
        """WORDS tokens."""
        given = torch.tensor([list(text.encode())], device=DEVICE)
        tokens = self.network.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=WORDS, min_new_tokens=WORDS, do_sample=False, num_beams=1
        )
        return tokens[0, 1:].tolist()


class TopicClassifier:
    """BERT over the tokens, and one layer over that and the pictures' features."""

    def __init__(self, seed=8):
        self.config = transformers.BertConfig()
        self.words = made(seed, lambda: transformers.BertModel(self.config))
        self.topics = made(seed, lambda: torch.nn.Linear(self.config.hidden_size + 768, TOPICS))

    @torch.inference_mode()
    def __call__(self, features, tokens):
        tokens = torch.tensor([tokens], device=DEVICE) % self.config.vocab_size
        said = self.words(tokens).last_hidden_state.mean(1)[0]
        seen = on_gpu(features).mean((0, 1))
        return self.topics(torch.cat([said, seen])).cpu().numpy()
