"""Between tensors and the bytes that connectors move."""

import warnings
from typing import Literal

import torch

from chiasm.connectors.base import Buffer
from chiasm.protocol.kv import KvMetadata
from chiasm.protocol.media import EmbeddingMetadata

DtypeName = Literal["float32", "bfloat16", "float16"]
_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_name(dtype: torch.dtype) -> DtypeName:
    """The name that crosses the wire."""
    return next(name for name, known in _DTYPES.items() if known is dtype)


def dtype_of(name: DtypeName) -> torch.dtype:
    """The torch type of a name from the wire or the settings."""
    return _DTYPES[name]


def tensor_bytes(tensor: torch.Tensor) -> Buffer:
    """The contiguous bytes of a CPU tensor, copied only when they are not contiguous (a slice of a batch is)."""
    flat = tensor.contiguous().view(torch.uint8).numpy()
    return flat.data.toreadonly()


def bytes_tensor(data: Buffer, metadata: EmbeddingMetadata | KvMetadata) -> torch.Tensor:
    """The tensor over `data`, sharing memory; never written to."""
    with warnings.catch_warnings():  # torch warns that the memory is read-only; nobody writes to what was sent
        warnings.simplefilter("ignore", UserWarning)
        flat = torch.frombuffer(data, dtype=_DTYPES[metadata.dtype])
    return flat.view(metadata.shape)
