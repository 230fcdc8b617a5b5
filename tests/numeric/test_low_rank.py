"""Adapters in both decoders: against merged weights in transformers, and against the base, bit for bit."""

import copy
from functools import cache

import pytest
import torch

from chiasm.engines.embedded.decoder.low_rank import LowRank, adapted_rows
from tests.numeric.decoder_models import ALL, NATIVE, Driver, make, reference_model
from tests.numeric.test_decoder import (
    LENGTHS,
    alone,
    compute_alone,
    compute_mixed,
    compute_some,
    needs_native,
    sequences,
)

PROJECTIONS = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "out": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}


def random_adapter(model, seed: int, parts=tuple(PROJECTIONS), rank: int = 5):
    """Additions to some layers' parts, and a copy of the model with them merged."""
    generator = torch.Generator().manual_seed(seed)
    merged, layers = copy.deepcopy(model), []
    for number, layer in enumerate(merged.model.layers):
        found = {}
        for part in parts if number != seed % 2 or len(parts) == 1 else ():
            block, names = PROJECTIONS[part]
            modules = [getattr(getattr(layer, block), name) for name in names]
            outputs = sum(module.weight.shape[0] for module in modules)
            shrink = torch.randn(rank, modules[0].weight.shape[1], generator=generator) * 0.1
            expand = torch.randn(outputs, rank, generator=generator) * 0.1
            found[part] = LowRank(shrink, expand)
            with torch.no_grad():
                for module, rows in zip(
                    modules, (expand @ shrink).split([m.weight.shape[0] for m in modules]), strict=True
                ):
                    module.weight += rows
        layers.append(found)
    return layers, merged


def adapters_for(model):
    """Of six sequences: two of one adapter, two of others, one of which touches one part only, and two of none."""
    first = random_adapter(model, 1)
    return {0: first, 1: first, 3: random_adapter(model, 2, rank=17), 5: random_adapter(model, 3, ("qkv",), rank=2)}


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_logits_are_those_of_merged_weights(name, kind):
    model = reference_model(name)
    chosen = adapters_for(model)
    decoder = make(kind, model)
    arranged = {id(layers): decoder.arrange(layers) for layers, _ in chosen.values()}
    driver = Driver(decoder, sequences(), adapters={n: arranged[id(layers)] for n, (layers, _) in chosen.items()})
    compute_mixed(driver)
    for number, tokens in enumerate(sequences()):
        reference = chosen[number][1] if number in chosen else model
        with torch.inference_mode():
            expected = reference(torch.tensor([tokens])).logits[0]
            base = model(torch.tensor([tokens])).logits[0]
        largest = expected.abs().max()
        assert (driver.logits(number) - expected).abs().max() <= 5e-5 * largest, number
        if number in chosen:
            assert (base - expected).abs().max() > 1e-2 * largest, "the adapter must matter"


@cache
def adapted_alone(name: str, kind: str):
    driver = adapted_driver(name, kind, 1)
    compute_alone(driver)
    return [driver.whole(number) for number in range(len(LENGTHS))]


def adapted_driver(name: str, kind: str, threads: int) -> Driver:
    model = reference_model(name)
    decoder = make(kind, model, threads=threads)
    arranged = {number: decoder.arrange(layers) for number, (layers, _) in adapters_for(model).items()}
    return Driver(decoder, sequences(), adapters=arranged)


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("compute", [compute_mixed, compute_some])
def test_company_and_threads_do_not_change_a_bit(name, kind, threads, compute):
    driver = adapted_driver(name, kind, threads)
    compute(driver)
    expected = adapted_alone(name, kind)
    assert all(torch.equal(hidden, expected[n][position]) for (n, position), hidden in driver.hidden.items())


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_rows_of_the_base_are_as_without_adapters_bit_for_bit(name, kind):
    driver = adapted_driver(name, kind, 2)
    compute_mixed(driver)
    for number in {2, 4}:
        assert torch.equal(driver.whole(number), alone(name, kind)[number])


def test_rows_of_the_base_are_as_without_adapters_in_the_torch_decoder():
    model = reference_model("plain")
    decoder = make("torch", model)
    mixed = Driver(decoder, sequences(), adapters={0: decoder.arrange(random_adapter(model, 1)[0])})
    plain = Driver(decoder, sequences())
    for driver in (mixed, plain):
        compute_mixed(driver)
    for number in range(1, len(LENGTHS)):
        assert torch.equal(mixed.whole(number), plain.whole(number))
    assert not torch.equal(mixed.whole(0), plain.whole(0))


@needs_native
def test_an_adapter_of_another_decoder_is_refused():
    model, kind = reference_model("plain"), NATIVE[0][1]
    one, other = make(kind, model), make(kind, model)
    driver = Driver(one, sequences(), adapters={0: other.arrange(random_adapter(model, 1)[0])})
    with pytest.raises(ValueError, match="not made by this decoder"):
        driver.step([], (0, 0, 5))


@needs_native
def test_an_adapter_outlives_its_decoder_and_says_how_large_it_is():
    model = reference_model("plain")
    decoder = make(NATIVE[0][1], model)
    layers = random_adapter(model, 1)[0]
    adapter = decoder.arrange(layers)
    decoder.close()
    del decoder
    weights = sum(one.shrink.nbytes + one.expand.nbytes for layer in layers for one in layer.values())
    assert adapter.num_bytes >= weights


def test_neighbouring_rows_of_an_adapter_are_joined():
    decoder, layers = make("torch", reference_model("plain")), random_adapter(reference_model("plain"), 1)[0]
    one, two = decoder.arrange(layers), decoder.arrange(layers)
    spans = adapted_rows([(one, 1), (one, 1), (None, 3), (two, 2), (one, 4)])
    assert [(span.adapter, span.first, span.count) for span in spans] == [(one, 0, 2), (two, 5, 2), (one, 7, 4)]
