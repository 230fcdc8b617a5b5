"""The vision tower in C: all layers of some pictures in one call, which gives way between two pieces when asked.

Weights keep their type in memory; everything computed is float32. A picture's embeddings do not depend on what else is
encoded with it or on the number of threads, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.vision_utils import get_vision_window_index

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.decoder.native_decoder import ALONE_PRODUCTS, WEIGHT_DTYPES, address, check, floats
from chiasm.engines.embedded.decoder.weights import Projection
from chiasm.engines.embedded.tower.pause import Pause
from chiasm.engines.embedded.tower.torch_tower import is_video, joined_patches
from chiasm.engines.embedded.tower.weights import MODEL_TYPES, Norm, tower_layers, tower_mergers, tower_shape
from chiasm.media.prepare.base import PreparedImage

PIECE_PRODUCTS = 16e6
"""Multiplications of each thread between two looks at the pause: about half a millisecond of a core with AVX2. Where 48
rows between two layers' attention are more, in towers wider than some 160, a thread gets those."""
_FIRST_POSITIONS = 64


def tower_problem(vision: Any) -> str | None:
    """Why `NativeTower` cannot take a Hugging Face vision model here; None when it can."""
    if native_decoder.library is None:
        return "it was not built when Chiasm was installed"
    if vision.config.model_type not in MODEL_TYPES:
        return f"it has no code for {vision.config.model_type}"
    shape = tower_shape(vision)
    if shape.activation is None:
        return f"it has no code for the activation {vision.config.hidden_act}"
    if native_decoder.kernels_for(shape.head_dim) is None:
        return f"it has no code for attention heads of {shape.head_dim}"
    return None if vision.dtype in WEIGHT_DTYPES else f"it has no code for weights of type {vision.dtype}"


class NativeTower:
    """See `Tower`. Not thread-safe: a call from a second thread raises `RuntimeError`. Its threads end with it."""

    def __init__(
        self,
        vision: Any,
        *,
        threads: int,
        pause: Pause | None = None,
        kernels: str = "",
        alone_products: float = ALONE_PRODUCTS,
    ) -> None:
        """Copy the weights. Raises `ValueError` and `MemoryError`.

        Args:
            vision: The model of a `TorchTower`; left as it is.
            threads: The caller's included.
            pause: Looked at by `encode` between two pieces. What its `give_way` raises ends the call.
            kernels: An instruction set, instead of the best.
            alone_products: Pictures of fewer multiplications are computed on the caller's thread.
        """
        assert native_decoder.library is not None, "callers ask `tower_problem` first"
        shape = tower_shape(vision)
        patches = vision.patch_embed
        self._shape = shape
        self._pause = pause
        self._dtype = vision.dtype
        # The C code knows patches of pictures, whose frames are alike. Of videos the first product is made by torch.
        self._whole_kernel = patches.whole_weight.float().contiguous(), floats(patches.bias)
        self._patch_size = (*patches.frames, patches.weight.shape[1] // patches.frames[0])
        self._windows = _Windows(vision) if hasattr(vision, "fullatt_block_indexes") else None
        self._rotary = _RotaryTables(vision.rotary_pos_emb)
        self._native = native_decoder.library.NativeTower(
            kernels,
            threads,
            shape.num_layers,
            shape.hidden_size,
            shape.heads,
            shape.head_dim,
            shape.intermediate_size,
            *self._patch_size,
            shape.merge_size,
            shape.out_hidden_size,
            shape.num_levels,
            shape.position_side,
            vision.dtype is torch.bfloat16,
            shape.is_rms,
            shape.activation,
            shape.eps,
            shape.scale,
            alone_products,
        )
        self.name = f"native ({self._native.kernels})"
        self._set_weights(vision)

    def encode(self, images: Sequence[PreparedImage]) -> torch.Tensor:
        """See `Tower`. Raises `ValueError` for what does not fit, and `MemoryError`."""
        patches = joined_patches(images)
        check("pixel_values", patches, (len(patches), int(np.prod(self._patch_size))))
        is_embedded = is_video(images)
        if is_embedded:
            patches = torch.cat([self._embedded(image) for image in images])
        grids = _frames(images)
        cos, sin = self._rotary.up_to(int(grids.max()))
        order, windows = (None, _NO_WINDOWS) if self._windows is None else self._windows.of(grids)
        shape = self._shape
        out = torch.empty(1 + shape.num_levels, len(patches) // shape.merge_size**2, shape.out_hidden_size)
        self._native.encode(
            len(patches),
            patches.data_ptr(),
            grids.ctypes.data,
            len(grids),
            address(order),
            windows.data_ptr(),
            len(windows),
            cos.data_ptr(),
            sin.data_ptr(),
            len(cos),
            out.data_ptr(),
            None if self._pause is None else self._pause.give_way,
            is_embedded,
            0 if self._pause is None else self._pause.address,
            PIECE_PRODUCTS,
        )
        rows = torch.cat(list(out), -1) if shape.num_levels else out[0]
        return (rows if order is None else rows[torch.argsort(order)]).to(self._dtype)

    def close(self) -> None:
        """Give back threads and memory; nothing may be called afterwards. Harmless when repeated."""
        self._native.close()

    def _embedded(self, video: PreparedImage) -> torch.Tensor:
        """Patches of a video times the whole kernel, each video by itself, so that its batch changes nothing."""
        kernel, bias = self._whole_kernel
        return torch.nn.functional.linear(torch.from_numpy(video.pixel_values()), kernel, bias).contiguous()

    def _set_weights(self, vision: Any) -> None:
        positions = getattr(vision, "pos_embed", None)
        patches = Projection(vision.patch_embed.weight.to(self._dtype), vision.patch_embed.bias)
        learned = None if positions is None else floats(positions.weight)
        kept = [*_arranged(patches), learned]  # until they have been copied
        self._native.set_embedding(*map(address, kept))
        for number, layer in enumerate(tower_layers(vision)):
            kept = _arranged(layer.qkv, layer.out, layer.up, layer.down, norms=(layer.norm1, layer.norm2))
            self._native.set_layer(number, layer.is_windowed, *map(address, kept))
        for number, merger in enumerate(tower_mergers(vision)):
            kept = _arranged(merger.up, merger.down, norms=(merger.norm,))
            self._native.set_merger(number, merger.after, merger.is_norm_of_merged, *map(address, kept))


def _arranged(*parts: Projection, norms: Sequence[Norm] = ()) -> list[torch.Tensor | None]:
    """Norms with their biases, then all matrices, then all their biases, as the extension reads them."""
    arranged = [floats(part) for norm in norms for part in (norm.weight, norm.bias)]
    return [*arranged, *(part.weight.contiguous() for part in parts), *(floats(part.bias) for part in parts)]


def _frames(images: Sequence[PreparedImage]) -> NDArray[np.int64]:
    """[frames, 2]: height and width in patches of everything that is attended to on its own."""
    grids = np.array([image.plan.grid_thw for image in images], np.int64)
    return np.repeat(grids[:, 1:], grids[:, 0], axis=0)


class _RotaryTables:
    """Cosines and sines [positions, head_dim / 4] of one axis, longer when a larger picture comes."""

    def __init__(self, rotary: Any) -> None:
        self._frequencies: torch.Tensor = rotary.inv_freq.detach().float()
        self._scaling = float(rotary.attention_scaling)
        self._tables = self._make(_FIRST_POSITIONS)

    def up_to(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of at least so many positions."""
        if len(self._tables[0]) < num_positions:
            self._tables = self._make(2 * num_positions)
        return self._tables

    def _make(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(num_positions)[:, None].float() * self._frequencies
        return angles.cos() * self._scaling, angles.sin() * self._scaling


_NO_WINDOWS = torch.zeros(0, dtype=torch.int64)


class _Windows:
    """The windows of Qwen2.5-VL."""

    def __init__(self, vision: Any) -> None:
        self._sizes = (int(vision.spatial_merge_size), int(vision.window_size), int(vision.patch_size))

    def of(self, grids: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """The order in which squares of patches lie window by window, and each window's number of patches."""
        with_time = torch.nn.functional.pad(torch.from_numpy(grids), (1, 0), value=1)
        order, ends = get_vision_window_index(with_time, *self._sizes)
        return order, ends.long().diff()
