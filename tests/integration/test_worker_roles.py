"""What a worker holds and refuses because of its roles."""

import gc
import weakref
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.engines.embedded.families.qwen_vl import QwenVL
from chiasm.errors import ChiasmError, EngineStartError, InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.worker import EncodeRequest
from tests.memory_transport import SharedTensors
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, staged, start


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


async def refusal(worker, request) -> ChiasmError:
    with pytest.raises(ChiasmError) as caught:
        await collect(worker, request)
    await idle(worker)
    return caught.value


@pytest.mark.parametrize("roles", [(), ("encode", "sing"), ("encode",), ("prefill",), ("encode", "decode")])
def test_roles_that_lead_nowhere_are_refused_before_anything_is_loaded(directory, monkeypatch, roles):
    monkeypatch.setattr(QwenVL, "load", lambda self, dtype: pytest.fail("loaded"))
    with pytest.raises(EngineStartError) as caught:
        start(directory, roles)
    assert caught.value.hint


def test_there_is_no_encoder_for_a_text_model(tmp_path):
    with pytest.raises(EngineStartError, match="takes no pictures"):
        start(build("llama", tmp_path / "llama"), ("encode",), SharedTensors())


async def test_a_text_model_claims_no_encoder(tmp_path):
    worker = start(build("llama", tmp_path / "llama"))
    assert worker.info.roles == ("prefill", "decode")
    await worker.aclose()


async def test_a_worker_keeps_only_the_weights_of_its_roles(directory, monkeypatch):
    loaded = []
    load = QwenVL.load

    def watched(self, dtype):
        model = load(self, dtype)
        text = weakref.ref(model.text.layers[0].mlp.gate_proj.weight), weakref.ref(model.text.embed_tokens.weight)
        loaded.append((*text, weakref.ref(model.vision)))
        return model

    monkeypatch.setattr(QwenVL, "load", watched)
    encoder = start(directory, ("encode",), SharedTensors())
    language = start(directory, ("decode", "prefill"))
    gc.collect()
    (layer, embed, _), (_, _, tower) = loaded
    assert (layer(), embed(), tower()) == (None, None, None)
    assert (encoder._engine.encoder is None, language._engine.encoder is None) == (False, True)
    assert encoder.info.roles == ("encode",)
    assert language.info.roles == ("prefill", "decode")
    assert encoder._engine.core is None
    assert encoder.stats().num_free_slots == 0
    for worker in (encoder, language):
        assert worker.stats().is_healthy
        await worker.aclose()
        assert not worker.stats().is_healthy


async def test_each_worker_refuses_what_its_roles_lack_and_says_so(directory):
    (item,) = pictures(1, 1)
    async with staged(directory, "e-p-d") as stages:
        error = await refusal(stages.encode, ask("hello"))
        assert isinstance(error, UnsupportedFeatureError)
        assert "its roles are encode" in error.message
        assert isinstance(await refusal(stages.prefill, ask("hello")), UnsupportedFeatureError)
        assert isinstance(await refusal(stages.decode, ask("hello")), UnsupportedFeatureError)
        error = await refusal(stages.prefill, ask("hello", item, max_tokens=1))
        assert (error.code, error.item) == ("embedding_unavailable", 0)
        narrow = replace(item, width=9000, height=30)
        error = await refusal(stages.prefill, ask("hello", item, narrow, max_tokens=1))
        assert (error.code, error.item) == ("media_refused", 1)
        with pytest.raises(UnsupportedFeatureError):
            await stages.decode.encode(EncodeRequest(request_id="e", items=(item,)))
        one = await collect(stages.prefill, ask("hello", max_tokens=1))
        assert len(one.tokens[0]) == 1
        long = replace(ask("hello"), hands_over_kv=True)
        assert isinstance(await refusal(stages.prefill, long), InvalidRequestError)


async def test_without_a_transport_nothing_is_handed_over(directory):
    worker = start(directory)
    try:
        error = await refusal(worker, replace(ask("hello", max_tokens=1), hands_over_kv=True))
        assert isinstance(error, UnsupportedFeatureError)
    finally:
        await worker.aclose()
