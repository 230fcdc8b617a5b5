import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from llguidance import LLParserLimits

import chiasm
import chiasm.engines.embedded.sampling.grammar as grammar_module
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.engines.embedded.sampling.grammar import GrammarCompiler
from chiasm.engines.embedded.sampling.sampler import SampledToken, SequenceSampler, sample
from chiasm.errors import InvalidRequestError
from chiasm.protocol.generation import ChoiceFinished, SamplingParams

TOKENIZER = ModelTokenizer(Path(chiasm.__file__).parent / "models" / "tiny_vlm")
COMPILER = GrammarCompiler(TOKENIZER)
ANIMALS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog", "새"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "place": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "count", "kind", "tags", "place"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


def encode(text: str) -> list[int]:
    return list(TOKENIZER.backend.encode(text, add_special_tokens=False).ids)


def generate(schema: dict, seed: int, width: int = TOKENIZER.vocab_size, **params) -> tuple[str, ChoiceFinished]:
    """Output of a model with random weights: every step's logits are noise."""
    how = SamplingParams(seed=seed, json_schema=json.dumps(schema), **{"temperature": 1.0, "max_tokens": 400, **params})
    grammar = COMPILER.compile(how.json_schema)
    eos = TOKENIZER.eos_token_ids
    sampler = SequenceSampler(how, choice=0, vocab_size=width, eos_token_ids=eos, grammar=grammar)
    stream = OutputStream(0, how, TOKENIZER, eos)
    noise = torch.Generator().manual_seed(seed)
    text = ""
    while True:
        (outcome,) = sample(torch.randn(1, width, generator=noise) * 3, [sampler])
        assert isinstance(outcome, SampledToken), outcome
        event, *end = stream.push(outcome)
        text += event.text
        if end:
            return text, end[0]


def assert_animals(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["name", "count", "kind", "tags", "place"]
    assert len(value["name"]) <= 6
    assert 0 <= value["count"] <= 99
    assert value["kind"] in ("cat", "dog", "새")
    assert all(isinstance(tag, bool) for tag in value["tags"])
    assert value["place"] is None or -9 <= value["place"]["x"] <= 9


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_random_weights_still_write_valid_json_and_end(seed, temperature):
    text, end = generate(ANIMALS, seed, temperature=temperature)
    assert_animals(text)
    assert end == ChoiceFinished(0, "stop")


@pytest.mark.parametrize("width", [TOKENIZER.vocab_size + 77, 900])
def test_output_layer_wider_or_narrower_than_the_tokenizer(width):
    assert_animals(generate(ANIMALS, 3, width=width)[0])


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_the_document_ends_where_its_schema_ends_whatever_else_is_asked_for(ignore_eos):
    bias = {2: 100.0, 35: 100.0}
    text, end = generate(
        ANIMALS, 5, min_tokens=399, ignore_eos=ignore_eos, top_k=2, frequency_penalty=1.0, logit_bias=bias
    )
    assert_animals(text)
    assert end == ChoiceFinished(0, "stop")


@pytest.mark.parametrize("seed", range(5))
def test_min_tokens_holds_off_an_end_that_the_schema_would_allow(seed):
    text, _ = generate({"type": "integer", "minimum": 1}, seed, min_tokens=30)
    assert len(str(json.loads(text))) >= 30


def test_max_tokens_may_cut_the_document():
    text, end = generate(ANIMALS, 1, max_tokens=3)
    assert end == ChoiceFinished(0, "length")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_scalars_may_end_whenever_they_are_complete():
    values = {json.loads(generate({"type": "integer", "minimum": 0, "maximum": 999}, seed)[0]) for seed in range(20)}
    assert len(values) > 5
    assert all(0 <= value <= 999 for value in values)


def test_every_state_is_independent():
    schema = json.dumps({"enum": ["ab", "cd"]})
    first, second = COMPILER.compile(schema), COMPILER.compile(schema)
    for token_id in encode('"ab"'):
        assert first.accept(token_id)
    branch = second.copy()
    assert first.is_finished
    assert not second.is_finished
    for token_id in encode('"cd"'):
        assert branch.accept(token_id)
    row = torch.zeros(TOKENIZER.vocab_size)
    second.mask(row)
    allowed = {TOKENIZER.pieces[i] for i in row.isfinite().nonzero().flatten().tolist()}
    assert b'"' in allowed
    assert allowed <= {b'"', b'"a', b'"c', b'"ab', b'"cd'}


def test_finished_state_allows_end_of_text_only():
    state = COMPILER.compile('{"const": 1}')
    assert state.accept(encode("1")[0])
    row = torch.zeros(TOKENIZER.vocab_size)
    state.mask(row)
    assert set(row.isfinite().nonzero().flatten().tolist()) == set(TOKENIZER.eos_token_ids)
    assert state.accept(2)
    assert state.is_finished


def test_token_that_does_not_fit_is_not_accepted():
    assert not COMPILER.compile('{"type": "integer"}').accept(encode("x")[0])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "EOF"),
        ("no json", "expected"),
        ("[]", "object"),
        ("true", "object"),
        ('{"type": "shape"}', "shape"),
        ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('{"type": "string", "pattern": "("}', "regex"),
        ('{"$ref": "https://example.com/schema"}', "retriev"),
        ('{"type": "integer", "minimum": 5, "maximum": 2}', "minimum"),
        ('{"type":"array","items":' * 3000 + "{}" + "}" * 3000, "recursion"),
        ('{"enum": ["' + "x" * 200_000 + '"]}', "131072"),
    ],
)
def test_unusable_schema_is_refused(schema, reason):
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        COMPILER.compile(schema)
    assert caught.value.param == "/response_format"
    assert len(caught.value.message) < 300


def test_schema_too_complex_to_follow_ends_its_own_sequence_only(monkeypatch):
    monkeypatch.setattr(grammar_module, "_LIMITS", LLParserLimits(step_max_items=1, verbose_errors=False))
    complex_state = GrammarCompiler(TOKENIZER).compile(json.dumps(ANIMALS))
    how = {"choice": 0, "vocab_size": TOKENIZER.vocab_size, "eos_token_ids": TOKENIZER.eos_token_ids}
    samplers = [
        SequenceSampler(SamplingParams(temperature=0), grammar=state, **how)
        for state in (complex_state, COMPILER.compile(json.dumps(ANIMALS)))
    ]
    steps = [sample(torch.zeros(2, TOKENIZER.vocab_size), samplers) for _ in range(2)]
    assert isinstance(steps[1][0], InvalidRequestError)
    assert all(isinstance(whole, SampledToken) for _, whole in steps)


def test_a_pattern_that_grows_beyond_all_bounds_is_the_callers_error():
    state = COMPILER.compile(json.dumps({"type": "string", "pattern": "^(a+)+{1000}{1000}$"}))
    state.mask(torch.zeros(TOKENIZER.vocab_size))
    with pytest.raises(InvalidRequestError, match="too many expressions"):
        state.accept(encode('"')[0])


def test_threads_share_a_compiler():
    compiler = GrammarCompiler(TOKENIZER)
    schemas = [json.dumps({"const": value % 5}) for value in range(60)]
    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(compiler.compile, schemas))
    for value, state in enumerate(states):
        assert state.accept(encode(str(value % 5))[0])
        assert state.is_finished


def test_schemas_are_kept_for_the_next_request():
    compiler = GrammarCompiler(TOKENIZER)
    compiler.compile('{"const": 0}')
    kept = compiler._compiled['{"const": 0}']
    for value in range(1, 200):
        compiler.compile('{"const": 0}')
        compiler.compile(json.dumps({"const": value}))
    assert compiler._compiled['{"const": 0}'] is kept
    assert len(compiler._compiled) == 64
