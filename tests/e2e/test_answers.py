"""Real answers about real pictures through the whole stack."""

import json

import openai
import pytest

from tests.e2e.served import ask, fresh, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the first test loads torch and the model

COLOR = "What color is the shape?"
FIRST, SECOND, THIRD = (f"What color is the shape in image {number}?" for number in (1, 2, 3))


NONSENSE = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nonsense"}}}


def chat(client, *parts, **options):
    options = {"temperature": 0, "max_tokens": 24} | options
    return client.chat.completions.create(model="tiny_vlm", messages=ask(*parts), **options)


def text(client, *parts, **options):
    return chat(client, *parts, **options).choices[0].message.content


def distribution(client, *parts):
    """Log probabilities of the likeliest first tokens."""
    made = chat(client, *parts, logprobs=True, top_logprobs=20, max_tokens=1)
    return {top.token: top.logprob for top in made.choices[0].logprobs.content[0].top_logprobs}


def distance(one, other):
    """The largest difference of a log probability; a token that only one has counts as very unlikely in the other."""
    return max(abs(one.get(token, -30.0) - other.get(token, -30.0)) for token in {*one, *other})


@pytest.mark.parametrize("color", ["red", "blue", "green", "yellow"])
def test_the_model_sees(client, color):
    assert color in text(client, picture(color), COLOR)


def test_pictures_keep_their_places(client):
    red, blue = picture("red"), picture("blue", "square")
    assert "red" in text(client, red, blue, FIRST)
    assert "blue" in text(client, red, blue, SECOND)
    assert "blue" in text(client, blue, red, FIRST)
    assert "red" in text(client, blue, red, SECOND)


def test_order_and_interleaving_change_the_distribution(client):
    red, blue = picture("red"), picture("blue", "square")
    one = distribution(client, "a", red, "b", blue, COLOR)
    again = distribution(client, "a", red, "b", blue, COLOR)  # now from the caches, in other batch shapes
    shared = {*one} & {*again}
    assert len(shared) >= 15  # of 20; rounding may swap those at the end
    assert all(one[token] == pytest.approx(again[token], abs=1e-3) for token in shared)
    for other in (("a", blue, "b", red, COLOR), ("a", "b", red, blue, COLOR), ("a", red, "b", red, COLOR)):
        assert distance(one, distribution(client, *other)) > 0.1


def test_a_picture_shown_three_times_is_encoded_once_and_fills_three_places(client, served):
    red, blue = fresh("red"), fresh("blue", "square")
    before = served.stats().totals["encoded_items"]
    made = chat(client, red, red, blue, red, FIRST, extra_body={"chiasm": {"receipt": True}})
    receipt = made.model_extra["chiasm"]["receipt"]
    assert served.stats().totals["encoded_items"] - before == 2
    alone = chat(client, red, COLOR)
    assert made.usage.prompt_tokens_details.image_tokens == 4 * alone.usage.prompt_tokens_details.image_tokens
    assert receipt["num_items"] == 4
    assert "red" in made.choices[0].message.content
    assert "blue" in text(client, red, red, blue, red, THIRD)


def test_a_stream_says_what_a_whole_response_says(client):
    for parts in ((picture("green"), "Describe the image."), ("Count from 3 to 9.",)):
        whole = chat(client, *parts, logprobs=True, top_logprobs=2)
        chunks = list(
            chat(client, *parts, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True})
        )
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
        entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        assert [entry.token for entry in entries] == [entry.token for entry in whole.choices[0].logprobs.content]
        assert choices[-1].finish_reason == whole.choices[0].finish_reason
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_an_echoed_conversation_goes_on(client):
    first = chat(client, picture("red"), COLOR)
    messages = [*ask(picture("red"), COLOR), first.choices[0].message, *ask("What shape is it?")]
    second = client.chat.completions.create(model="tiny_vlm", messages=messages, temperature=0, max_tokens=16)
    assert second.choices[0].message.content
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_limits_and_stops(client):
    long = chat(client, "Count from 3 to 9.")
    short = chat(client, "Count from 3 to 9.", max_tokens=3)
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (3, "length")
    assert long.choices[0].message.content.startswith(short.choices[0].message.content)
    stopped = chat(client, "Count from 3 to 9.", stop=["5"])
    assert stopped.choices[0].finish_reason == "stop"
    assert "5" not in stopped.choices[0].message.content
    assert stopped.choices[0].model_extra["stop_reason"] == "5"


def test_a_seed_repeats_and_choices_differ(client):
    def sampled(seed):
        made = chat(client, "Tell me a short story.", n=4, temperature=1.5, seed=seed, max_tokens=12)
        return [choice.message.content for choice in made.choices]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert len(set(sampled(1))) > 1


def test_json_output_holds_to_the_schema(client):
    schema = {
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "blue", "green"]},
            "count": {"type": "integer", "maximum": 9, "minimum": 0},
        },
        "required": ["color", "count"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema, "strict": True}}
    made = json.loads(text(client, picture("blue"), "Answer in JSON.", response_format=wanted, max_tokens=60))
    assert set(made) == {"color", "count"}
    assert made["color"] in ("red", "blue", "green")
    assert isinstance(
        json.loads(text(client, "Answer in JSON.", response_format={"type": "json_object"}, max_tokens=200)), dict
    )


def test_raw_completions(client):
    made = client.completions.create(
        model="tiny_vlm", prompt=["One, two,", "Red and"], n=2, max_tokens=4, temperature=0
    )
    assert len(made.choices) == 4
    assert made.choices[0].text == made.choices[1].text
    assert made.usage.completion_tokens <= 16


def test_the_receipt_tells_a_first_from_a_second_look(client, served):
    shown = fresh("yellow")

    def receipt():
        made = chat(client, shown, COLOR, extra_body={"chiasm": {"receipt": True}})
        return made.model_extra["chiasm"]["receipt"]

    first, second = receipt(), receipt()
    for made in (first, second):
        assert sum(made["stages_s"].values()) + made["unaccounted_s"] == pytest.approx(made["ttft_s"], abs=1e-6)
        assert made["unaccounted_s"] >= -1e-9
        assert made["stages_s"]["fetch"] > 0
    assert {"decode_media", "prepare", "encode", "prefill"} <= set(first["stages_s"])
    assert "encode" not in second["stages_s"]
    assert first["num_cached_tokens"] < first["num_visual_tokens"] < second["num_cached_tokens"]  # covered: not needed
    assert second["num_visual_tokens"] == first["num_visual_tokens"] > 0


@pytest.mark.parametrize(
    ("parts", "options", "code"),
    [
        (("word " * 5000,), {}, "context_length_exceeded"),
        (("data:image/png;base64,iVBORw0KGgo=", "x"), {}, "media_undecodable"),
        (("data:image/png;base64,PGh0bWw+", "x"), {}, "media_unsupported"),
        (("x",), {"response_format": NONSENSE}, "invalid_request"),
    ],
)  # fmt: skip
def test_bad_requests_have_their_code(client, served, parts, options, code):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, *parts, **options)
    assert caught.value.code == code
    served.until_idle()


def test_a_cut_off_picture_names_its_item_and_spoils_nothing(client, served):
    whole = picture("red", shift=13)
    head, _, data = whole.partition(",")
    with pytest.raises(openai.BadRequestError, match="item 1") as caught:
        chat(client, whole, f"{head},{data[: len(data) // 8 * 4]}", "x")
    assert caught.value.code == "media_undecodable"
    assert "red" in text(client, whole, COLOR)
    served.until_idle()
