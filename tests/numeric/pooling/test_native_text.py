"""Text encoders in C against transformers and torch's packed path, and against themselves, bit for bit."""

import random
from functools import cache

import pytest
import torch
from transformers import AutoConfig, AutoModel

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.pooling.backbone import Computing, arranged
from chiasm.engines.pooling.batch import Tokens, pack
from chiasm.engines.pooling.native_text import NativeTextEncoder, text_problem
from chiasm.protocol.pooling.work import PairInput, TextInput
from tests.conditions import NewThreads
from tests.numeric.minilm import directory as minilm
from tests.numeric.pooling.models import build
from tests.numeric.pooling.served import TEXTS, served

KINDS = [kind for kind in ("generic", "avx2", "avx512") if native_decoder.kernels_for(16, kind)]
SIZES = ("generic", 1, 1, 8, 1, 8, 8, 10, 10, 2, "gelu", 1e-6, 1.0, 0.0)
INPUT = [TextInput("one text")]
SHAPE = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 300,
}

pytestmark = pytest.mark.skipif(not KINDS, reason="installed without a compiler: the C encoder is not there")


@cache
def reference(model_type="bert", **config):
    torch.manual_seed(3)
    return AutoModel.from_config(AutoConfig.for_model(model_type, **(SHAPE | config))).eval()


def batch():
    """Texts of one token, of several blocks of queries and of several blocks of keys, of two kinds of tokens."""
    rng = random.Random(5)
    lengths = (1, 1, 23, 24, 25, 40, 40, 130, 257)
    ids = [tuple(rng.randrange(90) for _ in range(length)) for length in lengths]
    return pack([Tokens(one, tuple(rng.randrange(2) for _ in one)) for one in ids])


def native(kind="", *, threads=1, model=None, first_position=0):
    model = model if model is not None else reference()
    return NativeTextEncoder(model, threads=threads, kernels=kind, alone_products=0, first_position=first_position)


@torch.inference_mode()
def alone(model, packed, first_position=0, *, has_types=True):
    """Every text by itself, in transformers."""
    start, rows = 0, []
    for end in packed.ends:
        part = slice(start, end)
        types = packed.type_ids[part][None] if has_types else None
        positions = packed.positions[part][None] + first_position
        rows.append(model(packed.ids[part][None], token_type_ids=types, position_ids=positions).last_hidden_state[0])
        start = end
    return torch.cat(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_rows_are_those_of_transformers(kind, activation):
    model = reference(hidden_act=activation)
    found = native(kind, threads=2, model=model).encode(batch())
    assert (found - alone(model, batch())).abs().max() <= 1e-5


def test_robertas_positions_start_later_and_its_texts_have_one_type():
    model = reference("roberta", pad_token_id=1, type_vocab_size=1, max_position_embeddings=302)
    found = native(model=model, first_position=2).encode(batch())
    assert (found - alone(model, batch(), 2, has_types=False)).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_threads_and_wanted_rows_do_not_change_a_bit(kind, threads):
    together = batch()
    encoder = native(kind, threads=threads)
    rows = encoder.encode(together)
    firsts = [0, *together.ends[:-1]]
    assert torch.equal(encoder.encode(together, firsts), rows[firsts])
    assert torch.equal(encoder.encode(together, [5, 6, 7, 300]), rows[[5, 6, 7, 300]])
    for start, end in zip(firsts, together.ends, strict=True):
        ids, types = tuple(together.ids[start:end].tolist()), tuple(together.type_ids[start:end].tolist())
        assert torch.equal(native(kind).encode(pack([Tokens(ids, types)])), rows[start:end])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ids": torch.full((541,), 90)}, "a token that the model does not have"),
        ({"ids": torch.full((541,), -1)}, "a token that the model does not have"),
        ({"positions": torch.full((541,), 300)}, "a position that the model does not have"),
        ({"type_ids": torch.full((541,), 2)}, "a type that is not there"),
        ({"lengths": [541, 1]}, "a text of other than its tokens"),
        ({"lengths": [540]}, "more tokens than the texts have"),
    ],
)
def test_places_outside_of_the_tables_are_refused(change, problem):
    told = batch()
    told.__dict__.update(change)
    with pytest.raises(ValueError, match=problem):
        native().encode(told)


@pytest.mark.parametrize("kept", [[541], [-1], [4, 4], [5, 4], []])
def test_rows_that_are_not_there_are_refused(kept):
    with pytest.raises(ValueError, match=r"row"):
        native().encode(batch(), kept)


def test_weights_that_were_not_set_are_refused():
    lacking = native_decoder.library.NativeTextEncoder(*SIZES)
    ids, lengths, out = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.empty(8)
    with pytest.raises(ValueError, match="not set"):
        lacking.encode(1, *[ids.data_ptr()] * 3, lengths.data_ptr(), 1, 0, -1, out.data_ptr())
    with pytest.raises(IndexError):
        lacking.set_layer(1, *[0] * 12)


@pytest.mark.parametrize(("place", "value"), [(0, "none"), (1, 0), (2, 0), (7, 0), (10, "relu")])
def test_shapes_that_cannot_be_are_refused(place, value):
    native_decoder.library.NativeTextEncoder(*SIZES)
    with pytest.raises(ValueError, match=r"kernels|threads|positive|rows|activation"):
        native_decoder.library.NativeTextEncoder(*SIZES[:place], value, *SIZES[place + 1 :])


def test_a_closed_encoder_says_so():
    encoder = native()
    encoder.encode(batch())
    encoder.close()
    encoder.close()
    with pytest.raises(ValueError, match="closed"):
        encoder.encode(batch())


@pytest.mark.parametrize(
    ("config", "dtype", "problem"),
    [
        ({"hidden_act": "relu"}, torch.float32, "activation relu"),
        ({"hidden_size": 20}, torch.float32, "heads of 5"),
        ({"is_decoder": True}, torch.float32, "only those before them"),
        ({}, torch.bfloat16, "bfloat16"),
    ],
)
def test_what_it_cannot_do_torch_does(config, dtype, problem):
    model = reference(**config).to(dtype) if dtype != torch.float32 else reference(**config)
    assert problem in (text_problem(model, dtype) or "")
    assert not isinstance(arranged(reference(**config, num_hidden_layers=1), Computing(dtype), 0), NativeTextEncoder)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize("kind", ["base", "sequence"])
def test_torch_serves_the_same_numbers_where_it_is_asked_for(tmp_path, model_type, kind):
    labels = {"num_labels": 1, "pad_token_id": 0} if kind == "sequence" else {}
    directory = build(tmp_path / "m", model_type, kind, **labels)
    task = "embed" if kind == "base" else "score"
    inputs = [TextInput(text) if kind == "base" else PairInput("a query", text) for text in ("short", "a longer text")]
    with served(directory) as one, served(directory, engine__decoder="torch") as other:
        for mine, theirs in zip(one.values(task, inputs), other.values(task, inputs), strict=True):
            assert abs(mine - theirs).max() <= 1e-5


def test_minilm_in_torch_equals_minilm_in_c():
    inputs = [TextInput(text) for text in TEXTS]
    with served(minilm()) as one, served(minilm(), engine__decoder="torch") as other:
        for mine, theirs in zip(one.values("embed", inputs), other.values("embed", inputs), strict=True):
            assert abs(mine - theirs).max() <= 1e-6


def test_more_threads_than_it_takes_are_those_that_it_takes():
    with served(minilm(), engine__threads=native_decoder.MOST_THREADS + 44) as many, served(minilm()) as few:
        for mine, theirs in zip(many.values("embed", INPUT), few.values("embed", INPUT), strict=True):
            assert (mine == theirs).all()


def test_its_threads_end_with_the_worker():
    with served(minilm()):
        pass  # what libraries start once is there from now on
    threads = NewThreads()
    with served(minilm(), engine__threads=3):
        assert len(threads) >= 3  # the worker's, with two others
    threads.until_gone()
