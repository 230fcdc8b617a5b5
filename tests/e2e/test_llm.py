"""The Python API with the packaged model."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from chiasm import LLM
from chiasm.errors import (
    ContextLengthError,
    EngineDeadError,
    EngineStartError,
    InvalidRequestError,
    MediaDecodeError,
    UnknownSettingError,
    UnsupportedMediaError,
)
from tests.numeric.random_models import build


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as model:
        yield model


def square(color: str) -> Image.Image:
    picture = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(picture).rectangle((60, 60, 130, 130), fill=color)
    return picture


def asking(text: str, *pictures: object) -> list[dict]:
    return [
        {
            "role": "user",
            "content": [*({"type": "image", "image": p} for p in pictures), {"type": "text", "text": text}],
        }
    ]


def test_a_picture_may_be_an_object_bytes_or_a_path(llm, tmp_path):
    path = tmp_path / "square.png"
    square("red").save(path)
    for picture in (square("red"), path, str(path), path.read_bytes()):
        assert llm.chat(asking("What color is the square?", picture), temperature=0).text == "red"


def test_a_video_may_be_bytes_or_a_path(llm, tmp_path):
    pytest.importorskip("av", reason="the extra video is not installed")
    from tests.unit.media.video.clips import clip

    path = tmp_path / "clip.mp4"
    path.write_bytes(clip(12))
    results = []
    for video in (path, str(path), path.read_bytes()):
        content = [{"type": "video", "video": video}, {"type": "text", "text": "What is this?"}]
        options = {"mm_processor_kwargs": {"num_frames": 4}, "temperature": 0, "max_tokens": 4}
        results.append(llm.chat([{"role": "user", "content": content}], **options))
    assert len({result.text for result in results}) == 1
    assert {result.usage.num_visual_tokens for result in results} == {12}
    with pytest.raises(InvalidRequestError, match="A video part holds a int"):
        llm.chat([{"role": "user", "content": [{"type": "video", "video": 5}]}])


def test_a_result_has_counts_a_receipt_and_every_choice(llm):
    result = llm.chat(asking("What color is the square?", square("blue")), n=2, temperature=0)
    assert [choice.text for choice in result.choices] == ["blue", "blue"]
    assert [choice.finish_reason for choice in result.choices] == ["stop", "stop"]
    assert result.usage.num_visual_tokens == 36
    receipt = result.receipt
    assert receipt.ttft_s is not None
    assert sum(receipt.stages_s.values()) + receipt.unaccounted_s == pytest.approx(receipt.ttft_s)
    assert receipt.num_items == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_first_token_comes_before_the_last(llm, is_stream):
    options = {"max_tokens": 32, "min_tokens": 32, "ignore_eos": True, "temperature": 0}
    receipt = llm.chat(asking("Tell me a story."), stream=is_stream, **options).receipt
    assert receipt.num_output_tokens == 32
    assert receipt.decode_s > receipt.ttft_s / 32, "31 steps take longer than a part of the prompt"
    assert receipt.ttft_s + receipt.decode_s == pytest.approx(receipt.e2e_s)


def test_batches_keep_their_order_and_equal_single_calls(llm):
    colors = ["red", "green", "blue", "black"]
    conversations = [asking("What color is the square?", square(color)) for color in colors]
    batch = llm.chat_batch(conversations, temperature=0)
    assert [result.text for result in batch] == [llm.chat(one, temperature=0).text for one in conversations]


def test_streaming_gives_the_same_text_in_pieces(llm):
    messages = [{"role": "user", "content": "Tell me a story."}]
    pieces = list(llm.stream_chat(messages, temperature=0))
    assert len(pieces) > 20
    assert "".join(pieces) == llm.chat(messages, temperature=0).text


def test_a_stream_that_is_left_frees_its_slot(llm):
    stream = llm.stream_chat([{"role": "user", "content": "Tell me a story."}], temperature=0, ignore_eos=True)
    next(stream)
    stream.close()

    deadline_s = time.monotonic() + 10
    while llm._worker.stats().num_open_requests:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_raw_prompts_may_be_texts_or_tokens(llm):
    results = llm.generate(["abc", [10, 11, 12]], max_tokens=5, temperature=0, ignore_eos=True)
    assert [len(result.choices[0].token_ids) for result in results] == [5, 5]
    assert results[1].usage.num_prompt_tokens == 3


async def test_many_callers_at_once_from_an_event_loop(llm):
    results = await asyncio.gather(
        *(llm.achat([{"role": "user", "content": f"What is {i} + 1?"}], temperature=0) for i in range(8))
    )
    assert [result.text for result in results] == [str(i + 1) for i in range(8)]


def test_errors_are_the_products_own(llm, tmp_path):
    with pytest.raises(MediaDecodeError):
        llm.chat(asking("What?", b"\x89PNG\r\n\x1a\nnothing"))
    with pytest.raises(InvalidRequestError, match="image part"):
        llm.chat(asking("What?", 5))
    with pytest.raises(InvalidRequestError):
        llm.chat(asking("What?"), temperature=-1)
    with pytest.raises(ContextLengthError):
        llm.chat(asking("What?"), max_tokens=10**6)
    with pytest.raises(UnknownSettingError):
        LLM(max_runing=3)
    with pytest.raises(EngineStartError):
        LLM(str(tmp_path))


def test_a_text_model_refuses_pictures_and_a_closed_one_everything(tmp_path):
    with LLM(str(build("llama", tmp_path / "llama")), threads=1) as text_model:
        with pytest.raises(UnsupportedMediaError):
            text_model.chat(asking("What?", square("red")))
        assert text_model.generate(["abc"], max_tokens=3, ignore_eos=True)[0].usage.num_output_tokens == 3
    with pytest.raises(EngineDeadError):
        text_model.chat(asking("What?"))
    text_model.close()


def test_the_packaged_model_is_found_wherever_the_package_is():
    from chiasm.launch.model import model_directory

    assert (model_directory("") / "model.safetensors").is_file()
    assert Path(model_directory("")).name == "tiny_vlm"
