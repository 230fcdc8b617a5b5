"""Both decoders against Hugging Face; the C one also against itself, bit for bit."""

import copy
import random
import threading
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.decoder.base import DeepstackRows
from chiasm.engines.embedded.decoder.native_decoder import NativeDecoder
from tests.conditions import NewThreads
from tests.numeric.decoder_models import ALL, MAX_TOKENS, NATIVE, Driver, loaded, make, native_kinds
from tests.numeric.decoder_models import reference_model as new_reference_model
from tests.numeric.random_models import RECIPES

LENGTHS = (40, 33, 9, 100, 1, 20)
reference_model = cache(new_reference_model)
needs_native = pytest.mark.skipif(not NATIVE, reason="installed without a compiler: the C decoder is not there")


@cache
def sequences(seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(380) for _ in range(length)] for length in LENGTHS]


def compute_mixed(driver: Driver) -> None:
    """Prompts alone and together, then ragged decode rows with chunks of other prompts in the same steps."""
    driver.step([], (0, 0, 37))
    driver.step([], (1, 0, 17), (2, 0, 8))
    driver.step([], (1, 17, 15), (4, 0, 1))
    driver.step([37, 32, 8], (3, 0, 60), (5, 0, 20))
    driver.step([38], (3, 60, 1))
    driver.step([39], (3, 61, 39))


def compute_alone(driver: Driver) -> None:
    for number, tokens in enumerate(driver.sequences):
        driver.step([], (number, 0, len(tokens)))


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_logits_are_those_of_transformers(name, kind):
    model = reference_model(name)
    driver = Driver(make(kind, model), sequences())
    compute_mixed(driver)
    for number, tokens in enumerate(sequences()):
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0]
        difference = (driver.logits(number) - expected).abs().max()
        assert difference <= 3e-5 * expected.abs().max(), number


@pytest.mark.parametrize("kind", ["torch", *native_kinds("plain")])
def test_deepstack_rows_are_added_after_the_first_layers(kind):
    config = AutoConfig.for_model(**RECIPES["qwen3_vl"].config)
    torch.manual_seed(3)
    whole = AutoModelForImageTextToText.from_config(config).eval()
    text = whole.model.language_model
    tokens, rows = sequences()[0], torch.tensor([3, 4, 5, 11, 30])
    levels = torch.randn(2, len(rows), text.config.hidden_size)
    is_row = torch.zeros(1, len(tokens), dtype=torch.bool)
    is_row[0, rows] = True
    with torch.inference_mode():
        hidden = text(torch.tensor([tokens]), visual_pos_masks=is_row, deepstack_visual_embeds=list(levels))[0]
        expected = whole.lm_head(hidden)[0]
    text.lm_head, text.model = whole.lm_head, text
    driver = Driver(make(kind, text), [tokens])
    driver.deepstack = DeepstackRows(rows, levels)
    driver.step([], (0, 0, len(tokens)))
    assert (driver.logits(0) - expected).abs().max() <= 3e-5 * expected.abs().max()


@cache
def alone(name: str, kind: str) -> list[torch.Tensor]:
    driver = Driver(make(kind, reference_model(name)), sequences())
    compute_alone(driver)
    return [driver.whole(number) for number in range(len(LENGTHS))]


def same(driver: Driver, expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(driver.whole(number), hidden) for number, hidden in enumerate(expected))


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_chunks_and_threads_do_not_change_a_bit(name, kind, threads):
    driver = Driver(make(kind, reference_model(name), threads=threads), sequences())
    compute_mixed(driver)
    assert same(driver, alone(name, kind))


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_any_cut_of_a_prompt_gives_the_same_bits(name, kind):
    driver, rng = Driver(make(kind, reference_model(name), threads=2), sequences()), random.Random(1)
    for number, tokens in enumerate(sequences()):
        inner = rng.sample(range(1, len(tokens)), min(len(tokens) - 1, 4))
        for start, end in pairwise([0, *sorted(inner), len(tokens)]):
            driver.step([], (number, start, end - start))
    assert same(driver, alone(name, kind))


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_token_by_token_gives_the_same_bits(name, kind):
    driver = Driver(make(kind, reference_model(name), threads=2), sequences())
    for context in range(max(LENGTHS)):
        chunks = [(number, context, 1) for number, length in enumerate(LENGTHS) if context < length]
        driver.step([], *chunks)
    assert same(driver, alone(name, kind))


def compute_some(driver: Driver) -> None:
    """As `compute_mixed`, but only some rows are wanted of most steps."""
    driver.step([], (0, 0, 37), wanted=[36])
    driver.step([], (1, 0, 17), (2, 0, 8), wanted=[])
    driver.step([], (1, 17, 15), (4, 0, 1), wanted=[3, 15])
    driver.step([37, 32, 8], (3, 0, 60), (5, 0, 20), wanted=[0, 1, 2, 61, 82])
    driver.step([38], (3, 60, 1))
    driver.step([39], (3, 61, 39), wanted=[0, 37, 39])


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_that_nobody_wants_do_not_change_a_bit(name, kind, threads):
    driver = Driver(make(kind, reference_model(name), threads=threads), sequences())
    compute_some(driver)
    assert len(driver.hidden) == 13
    for (number, position), hidden in driver.hidden.items():
        assert torch.equal(hidden, alone(name, kind)[number][position])


def test_the_torch_decoder_returns_the_wanted_rows():
    whole, some = (Driver(make("torch", reference_model("plain")), sequences()) for _ in range(2))
    compute_mixed(whole)
    compute_some(some)
    assert all(torch.equal(hidden, whole.hidden[place]) for place, hidden in some.hidden.items())


@needs_native
@pytest.mark.parametrize("wanted", [[3], [-1], [1, 1], [2, 0]])
def test_wanted_rows_that_are_not_there_or_out_of_order_are_refused(wanted):
    decoder, kv = (
        make("generic", reference_model("plain")),
        Driver(make("generic", reference_model("plain")), []).kv.data,
    )
    x, rotary, contexts = torch.zeros(3, 64), decoder.rotary(np.arange(3)[None]), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="wanted rows out of order"):
        decoder.forward(x, rotary, kv, contexts, [], None, torch.tensor(wanted))


@needs_native
def test_wanted_rows_of_a_model_with_levels_after_each_layer():
    results = []
    for wanted in (None, [0, 2]):
        driver = Driver(make("generic", reference_model("plain")), sequences())
        levels = torch.randn(3, 1, 64, generator=torch.Generator().manual_seed(0))
        driver.deepstack = DeepstackRows(torch.tensor([2]), levels)
        driver.step([], (0, 0, 4), wanted=wanted)
        results.append([driver.hidden[0, position] for position in (0, 2)])
    assert all(torch.equal(whole, some) for whole, some in zip(*results, strict=True))


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_a_prefix_copied_from_another_slot_gives_the_same_bits(name, kind):
    driver = Driver(make(kind, reference_model(name)), [sequences()[3], sequences()[3]])
    driver.step([], (0, 0, 100))
    driver.kv.data[:, 1, :, :, :48] = driver.kv.data[:, 0, :, :, :48]
    driver.step([], (1, 48, 52))
    assert torch.equal(torch.stack([driver.hidden[1, i] for i in range(48, 100)]), alone(name, kind)[3][48:])


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_what_lies_beyond_a_context_is_neither_used_nor_written(name, kind):
    driver = Driver(make(kind, reference_model(name), threads=2), sequences())
    driver.kv.data.fill_(float("nan"))
    compute_mixed(driver)
    assert same(driver, alone(name, kind))
    for slot, length in enumerate(LENGTHS):
        assert driver.kv.data[:, slot, :, :, :length].isfinite().all()
        assert driver.kv.data[:, slot, :, :, length:].isnan().all()
    assert driver.kv.data[:, len(LENGTHS) :].isnan().all()


@needs_native
@pytest.mark.parametrize("kind", native_kinds("plain"))
def test_a_row_that_is_not_finite_stays_alone(kind, monkeypatch):
    driver = Driver(make(kind, reference_model("plain"), threads=2), sequences())
    driver.step([], (0, 0, 39), (1, 0, 32), (2, 0, 8))
    embed = driver.decoder.embed
    monkeypatch.setattr(driver.decoder, "embed", lambda ids: embed(ids).index_fill_(0, torch.tensor([1]), torch.nan))
    driver.step([39, 32, 8], (3, 0, 100))
    assert driver.hidden[1, 32].isnan().all()
    for number in (0, 2, 3):
        assert torch.equal(driver.whole(number), alone("plain", kind)[number])


@needs_native
@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_bfloat16_weights_compute_as_their_float32_values(name, kind):
    narrow = new_reference_model(name, torch.bfloat16)
    results = []
    for model in (narrow, new_reference_model(name, torch.bfloat16).float()):
        driver = Driver(make(kind, model), sequences())
        compute_mixed(driver)
        results.append(driver.logits(0))
    # the tables of float32 and bfloat16 models differ in how transformers keeps their frequencies, nothing else does
    assert torch.equal(*results)


@needs_native
@pytest.mark.parametrize("kind", native_kinds("plain"))
def test_thousands_of_steps_with_more_threads_than_cores(kind):
    expected, rng = alone("plain", kind), random.Random(5)
    driver = Driver(make(kind, reference_model("plain"), threads=3), sequences())
    compute_alone(driver)
    for _ in range(4000):
        if rng.random() < 0.7:
            contexts = [rng.randrange(LENGTHS[number]) for number in range(rng.randint(1, 4))]
            chunks = []
        else:
            contexts = []
            chunks = [(n, start := rng.randrange(LENGTHS[n]), rng.randint(1, LENGTHS[n] - start)) for n in (3, 0)]
        driver.hidden.clear()
        driver.step(contexts, *chunks)
        assert all(torch.equal(hidden, expected[number][at]) for (number, at), hidden in driver.hidden.items())


@needs_native
def test_many_decoders_live_side_by_side():
    names = ["plain", "odd sizes", "norms of queries and keys"] * 2
    kind = native_kinds("odd sizes")[0]
    drivers = [Driver(make(kind, reference_model(name), threads=2), sequences()) for name in names]
    for number, length in enumerate(LENGTHS):
        for driver in drivers:
            driver.step([], (number, 0, length))
    for driver, name in zip(drivers, names, strict=True):
        assert same(driver, alone(name, kind))


@needs_native
def test_threads_end_with_the_decoder():
    started = NewThreads()
    driver = Driver(make("generic", reference_model("plain"), threads=4), sequences())
    forgotten = make("generic", reference_model("plain"), threads=2)
    assert len(started) == 4
    compute_mixed(driver)
    driver.decoder.close()
    driver.decoder.close()
    del forgotten
    started.until_gone()
    with pytest.raises(ValueError, match="closed"):
        driver.step([], (0, 0, 3))


@needs_native
@pytest.mark.parametrize(
    ("contexts", "chunks", "reason"),
    [
        ([], [(0, MAX_TOKENS - 5, 6)], "beyond the end"),
        ([MAX_TOKENS], [], "beyond the end"),
        ([-1], [], "beyond the end"),
        ([], [(0, 0, 0)], "beyond the end"),
        ([], [(9, 0, 2)], "not there"),
        ([], [(-1, 0, 2)], "not there"),
        ([5], [(0, 0, 2)], "occurs twice"),
        ([], [(3, 0, 2), (3, 2, 2)], "occurs twice"),
    ],
)
def test_places_outside_the_memory_are_refused(contexts, chunks, reason):
    driver = Driver(make("generic", reference_model("plain")), [[1] * 200] * 10)
    with pytest.raises(ValueError, match=reason):
        driver.step(contexts, *chunks)
    driver.step([], (0, 0, 3))


@needs_native
def test_arrays_of_other_types_and_sizes_are_refused():
    driver = Driver(make("generic", reference_model("plain")), sequences())
    decoder, kv = driver.decoder, driver.kv.data
    rotary, x, none = decoder.rotary(np.arange(3)[None]), torch.zeros(3, 64), np.zeros(0, np.int64)
    contexts = np.zeros(3, np.int64)
    deepstack = DeepstackRows(torch.tensor([1]), torch.zeros(1, 2, 64))
    for arguments in (
        (x.bfloat16(), rotary, kv, contexts, [], None),
        (x[:2], rotary, kv, contexts, [], None),
        (torch.zeros(3, 128)[:, ::2], rotary, kv, contexts, [], None),
        (x, rotary[:2], kv, contexts, [], None),
        (x, rotary, kv.bfloat16(), contexts, [], None),
        (x, rotary, kv[:2], contexts, [], None),
        (x, rotary, kv.transpose(1, 3), contexts, [], None),
        (x, rotary, kv, none, [], None),
        (x, rotary, kv, contexts, [], deepstack),
        (x, rotary, kv, contexts, [], DeepstackRows(torch.tensor([3]), torch.zeros(1, 1, 64))),
        (x, rotary, kv, contexts, [], DeepstackRows(torch.tensor([0]), torch.zeros(9, 1, 64))),
    ):
        with pytest.raises(ValueError, match=r"must be|The step names"):
            decoder.forward(*arguments)
    with pytest.raises(ValueError, match="must be"):
        decoder.logits(torch.zeros(2, 63))


@needs_native
def test_memory_that_is_refused_is_an_ordinary_error():
    decoder = make("generic", reference_model("plain"), threads=2)
    assert isinstance(decoder, NativeDecoder)
    huge = np.array([[0, 0, 2**44]], np.int64)
    with pytest.raises(MemoryError):
        decoder._native.step(2**44, 0, 0, 0, 0, 1, 2**44, huge.ctypes.data, 1, 0, 0, 0, 0, 0, -1, 0, ())
    with pytest.raises(MemoryError):
        type(decoder._native)("generic", 1, 1, 64, 2, 1, 16, 64, 2**50, False, 1e-6, 1.0, 0.0).set_head(0, 0)
    driver = Driver(decoder, sequences())
    compute_mixed(driver)
    assert same(driver, alone("plain", "generic"))


@needs_native
def test_small_steps_are_computed_by_the_caller_alone():
    driver = Driver(NativeDecoder(loaded(reference_model("plain")), None, threads=2), sequences())
    compute_mixed(driver)
    assert same(driver, alone("plain", native_kinds("plain")[0]))


@needs_native
def test_a_second_thread_is_refused_while_one_computes():
    drivers = Driver(make("generic", reference_model("one query head per key head, wide")), [[1] * MAX_TOKENS] * 8)
    stop, refused = threading.Event(), []

    def compute() -> None:
        while not stop.is_set():
            try:
                drivers.decoder.logits(torch.zeros(2000, 64))
            except RuntimeError as error:
                refused.append(error)
                stop.set()

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert stop.wait(30), "two threads never met"
    for thread in threads:
        thread.join(30)
    assert "another thread" in str(refused[0])


@needs_native
def test_float32_weights_that_fit_bfloat16_are_kept_in_half_the_memory_for_the_same_bits(monkeypatch):
    model = copy.deepcopy(reference_model("plain"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    results = []
    for fits in (True, False):
        if not fits:
            monkeypatch.setattr(native_decoder, "_fit_bfloat16", lambda layers, head: False)
        decoder = make(native_kinds("plain")[0], model)
        assert decoder._stored is (torch.bfloat16 if fits else torch.float32)
        driver = Driver(decoder, sequences())
        compute_mixed(driver)
        results.append([driver.logits(number) for number in range(len(LENGTHS))])
    assert all(torch.equal(half, whole) for half, whole in zip(*results, strict=True))


@needs_native
def test_one_weight_that_does_not_fit_keeps_all_in_float32():
    decoder = make(native_kinds("plain")[0], reference_model("plain"))
    assert decoder._stored is torch.float32
