"""The packaged model answers as well as its card says, through the whole engine."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chiasm import LLM
from chiasm.launch.model import model_directory
from tiny_vlm.evaluate import Sample, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the first test loads torch and the model
CARD: dict[str, dict[str, float]] = json.loads((model_directory("") / "accuracy.json").read_text())
NUM_SAMPLES = 25


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as model:
        yield model


def conversation(sample: Sample) -> list[dict[str, Any]]:
    """The sample's messages with its pictures in their places."""
    pictures = iter(sample.images)
    return [
        message
        if isinstance(message["content"], str)
        else message
        | {
            "content": [
                p if p["type"] == "text" else {"type": "image", "image": next(pictures)} for p in message["content"]
            ]
        }
        for message in sample.messages
    ]


@pytest.mark.parametrize("task", sorted(CARD))
def test_accuracy_is_not_below_the_card(llm, task):
    asked = samples(task, NUM_SAMPLES, seed=7)
    results = llm.chat_batch([conversation(sample) for sample in asked], temperature=0, max_tokens=200)
    wrong = [
        (sample.expected, result.text)
        for sample, result in zip(asked, results, strict=True)
        if not sample.matches(result.text)
    ]
    accuracy = 1 - len(wrong) / NUM_SAMPLES
    assert accuracy >= CARD[task]["floor"], f"{task}: {accuracy:.2f}; for example (expected, answered) {wrong[:5]}"


def test_the_floors_ask_for_something():
    assert len(CARD) >= 12
    assert sum(entry["floor"] for entry in CARD.values()) / len(CARD) > 0.35
