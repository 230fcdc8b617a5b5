"""Packed layers leave alone what is the caller's."""

import pytest
import torch

from chiasm.engines.pooling import packing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_looking_whether_convolutions_can_be_packed_leaves_torchs_random_numbers_as_they_were(dtype):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    packing._convolution_packs.__wrapped__(dtype)
    assert torch.equal(torch.get_rng_state(), before)
