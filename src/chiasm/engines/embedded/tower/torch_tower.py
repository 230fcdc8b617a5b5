"""The vision tower as transformers has it, but for the patch embedding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from chiasm.media.prepare.base import PreparedImage


class PatchLinear(nn.Module):
    """The patch embedding as one matrix product.

    The kernel of the original convolution covers a patch exactly, so the flattened kernel gives the same sums; oneDNN's
    `Conv3d` takes several times as long for them. A picture fills all frames of a patch alike, so the kernel's frames
    are added up once, and only the first frame is multiplied.

    Attributes:
        frames: Channels and frames of a patch.
        weight: [hidden_size, channels x side x side], for patches whose frames are alike.
        whole_weight: [hidden_size, channels x frames x side x side], for those of videos.
        bias: [hidden_size] or None.
        is_video: Whether patches of videos come next.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        kernel = convolution.weight.detach()
        self.frames = (kernel.shape[1], kernel.shape[2])
        self.weight = kernel.sum(2).flatten(1)
        self.whole_weight = kernel.flatten(1)
        self.bias = None if convolution.bias is None else convolution.bias.detach()
        self.is_video = False

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[patches, channels x frames x side x side] to [patches, hidden_size]."""
        if self.is_video:
            return functional.linear(patches.to(self.weight.dtype), self.whole_weight, self.bias)
        first = patches.view(len(patches), *self.frames, -1)[:, :, 0].flatten(1)
        return functional.linear(first.to(self.weight.dtype), self.weight, self.bias)


class TorchTower:
    """See `Tower`."""

    name = "torch"

    def __init__(self, vision: Any) -> None:
        """Take over a Hugging Face vision model of a Qwen-VL family."""
        vision.patch_embed = PatchLinear(vision.patch_embed.proj)
        self.vision = vision

    def encode(self, images: Sequence[PreparedImage]) -> torch.Tensor:
        """See `Tower`."""
        self.vision.patch_embed.is_video = is_video(images)
        grids = torch.tensor([image.plan.grid_thw for image in images], device=self.vision.device)
        patches = joined_patches(images).to(self.vision.device, self.vision.dtype)
        output = self.vision(patches, grid_thw=grids)
        return torch.cat([output.pooler_output, *(getattr(output, "deepstack_features", None) or ())], -1)


def is_video(images: Sequence[PreparedImage]) -> bool:
    """Whether they are videos; a call has one kind alone."""
    kinds = {image.plan.kind for image in images}
    assert len(kinds) == 1, "pictures and videos are encoded in calls of their own"
    return kinds == {"video"}


def joined_patches(images: Sequence[PreparedImage]) -> torch.Tensor:
    """All pictures' patches [patches, channels x frames x side x side]."""
    values = [torch.from_numpy(image.pixel_values()) for image in images]
    return values[0] if len(values) == 1 else torch.cat(values)
