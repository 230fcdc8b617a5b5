"""Chat requests to plans: order, roles, media, and refusals that say which part they mean."""

import json

import pytest

from chiasm.errors import InvalidRequestError, MediaRefusedError, UnsupportedFeatureError, UnsupportedMediaError
from chiasm.gateway.openai.chat import ChatDialect
from chiasm.protocol.generation import ItemPart, TextPart


def plan(messages=None, **fields):
    body = {"messages": messages or [{"role": "user", "content": "hi"}], **fields}
    return ChatDialect().plan(json.dumps(body).encode())


def parts(*content, role="user"):
    return plan([{"role": role, "content": list(content)}])


def text(value):
    return {"type": "text", "text": value}


def image(url, **fields):
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def test_text_and_pictures_keep_their_order():
    made = parts(text("1"), image("x:a"), text("2"), image("x:b"), text("3"))
    assert made.prompts[0].messages[0].parts == (
        TextPart("1"),
        ItemPart(0),
        TextPart("2"),
        ItemPart(1),
        TextPart("3"),
    )
    assert [reference.url for reference in made.references] == ["x:a", "x:b"]


def test_each_occurrence_of_a_picture_is_an_item_of_its_own():
    made = parts(*(image(f"x:{name}") for name in "aaba"))
    assert made.prompts[0].messages[0].parts == tuple(ItemPart(index) for index in range(4))
    assert [reference.url for reference in made.references] == ["x:a", "x:a", "x:b", "x:a"]


def test_items_are_numbered_over_all_messages():
    made = plan(
        [
            {"role": "user", "content": [image("x:a")]},
            {"role": "assistant", "content": "A."},
            {"role": "user", "content": [image("x:b"), text("?")]},
        ]
    )
    assert made.prompts[0].messages[2].parts == (ItemPart(1), TextPart("?"))
    assert [reference.param for reference in made.references] == [
        "/messages/0/content/0/image_url/url",
        "/messages/2/content/0/image_url/url",
    ]


def test_a_bare_string_is_a_url_too():
    made = parts({"type": "image_url", "image_url": "x:a"})
    assert made.references[0].url == "x:a"
    assert made.references[0].param == "/messages/0/content/0/image_url"


@pytest.mark.parametrize("detail", ["auto", "low", "high", None])
def test_detail_is_a_hint_that_is_taken(detail):
    assert parts({"type": "image_url", "image_url": {"url": "x:a", "detail": detail}}).references[0].url == "x:a"


def test_names_of_pictures_become_aliases():
    made = parts(image("x:a"), image("x:b", uuid="mine"))
    assert [(alias.item, alias.name) for alias in made.aliases] == [(1, "mine")]


def test_a_name_alone_is_refused():
    with pytest.raises(UnsupportedFeatureError, match="without image_url"):
        parts({"type": "image_url", "image_url": None, "uuid": "mine"})


def test_developer_is_system():
    made = plan([{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}])
    assert [message.role for message in made.prompts[0].messages] == ["system", "user"]


def test_text_is_taken_literally():
    assert plan([{"role": "user", "content": "<|image_pad|>"}]).prompts[0].messages[0].parts == (
        TextPart("<|image_pad|>"),
    )


@pytest.mark.parametrize("role", ["tool", "function"])
def test_tool_messages_are_refused(role):
    with pytest.raises(UnsupportedFeatureError) as caught:
        plan([{"role": role, "content": "42", "tool_call_id": "1"}])
    assert caught.value.param == "/messages/0/role"


def test_unknown_roles_are_refused_without_repeating_them():
    with pytest.raises(InvalidRequestError) as caught:
        plan([{"role": "narrator", "content": "x"}])
    assert "narrator" not in caught.value.message
    assert "assistant" in caught.value.hint


def test_an_assistant_message_as_clients_echo_it_is_taken():
    echoed = {"role": "assistant", "content": "A.", "refusal": None, "tool_calls": None, "annotations": [],
              "audio": None, "function_call": None}  # fmt: skip
    assert plan([echoed, {"role": "user", "content": "?"}]).prompts[0].messages[0].parts == (TextPart("A."),)


@pytest.mark.parametrize("field", ["name", "tool_calls", "function_call", "refusal", "audio", "reasoning_content"])
def test_message_fields_with_a_meaning_are_refused(field):
    with pytest.raises(UnsupportedFeatureError) as caught:
        plan([{"role": "assistant", "content": "A.", field: "something"}])
    assert caught.value.param == f"/messages/0/{field}"


@pytest.mark.parametrize("kind", ["input_audio", "audio_url", "file"])
def test_other_media_are_refused_with_their_index(kind):
    with pytest.raises(UnsupportedMediaError) as caught:
        parts(image("x:a"), text("and"), {"type": kind, kind: {"url": "x:b"}})
    assert caught.value.item == 1
    assert caught.value.message.startswith("Media item 1:")
    assert caught.value.param == "/messages/0/content/2"


@pytest.mark.parametrize("kind", ["image_embeds", "audio_embeds", "video_embeds"])
def test_embeddings_from_clients_are_refused(kind):
    with pytest.raises(MediaRefusedError) as caught:
        parts(text("x"), {"type": kind, kind: {"image_grid_thw": [1, 16, 16]}, "uuid": "h"})
    assert caught.value.item == 0


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_pictures_stand_in_user_messages(role):
    with pytest.raises(InvalidRequestError, match="picture"):
        parts(image("x:a"), role=role)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_message_needs_content(role):
    with pytest.raises(InvalidRequestError) as caught:
        plan([{"role": role, "content": None}])
    assert caught.value.param == "/messages/0/content"


def test_both_names_of_the_output_limit():
    assert plan(max_tokens=5).sampling.max_tokens == 5
    assert plan(max_completion_tokens=6).sampling.max_tokens == 6
    assert plan(max_completion_tokens=6, max_tokens=6).sampling.max_tokens == 6
    assert plan().sampling.max_tokens is None
    with pytest.raises(InvalidRequestError, match="differ"):
        plan(max_completion_tokens=6, max_tokens=5)


def test_logprobs():
    assert plan().sampling.num_top_logprobs is None
    assert plan(logprobs=False, top_logprobs=0).sampling.num_top_logprobs is None
    assert plan(logprobs=True).sampling.num_top_logprobs == 0
    assert plan(logprobs=True, top_logprobs=5).sampling.num_top_logprobs == 5
    with pytest.raises(InvalidRequestError, match="without logprobs"):
        plan(top_logprobs=5)


def test_continuing_the_final_message():
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2,"}]
    assert plan(messages, continue_final_message=True).prompts[0].continue_final_message
    assert plan(messages, continue_final_message=True, add_generation_prompt=False)
    assert not plan(messages, add_generation_prompt=True).prompts[0].continue_final_message
    with pytest.raises(InvalidRequestError, match="assistant message at the end"):
        plan(messages[:1], continue_final_message=True)
    with pytest.raises(UnsupportedFeatureError):
        plan(messages, add_generation_prompt=False)


def test_streaming_and_extensions():
    made = plan(stream=True, stream_options={"include_usage": True}, chiasm={"receipt": True, "timeout_s": 3})
    assert (made.is_stream, made.has_usage_chunk, made.wants_receipt, made.timeout_s) == (True, True, True, 3.0)
    assert not plan(stream=True, stream_options={"include_usage": False}).has_usage_chunk
    assert not plan(stream=True, stream_options={}).has_usage_chunk
    with pytest.raises(InvalidRequestError, match="without stream"):
        plan(stream_options={"include_usage": True})


def video(url="x:v", **more):
    return {"type": "video_url", "video_url": {"url": url}, **more}


def videos(*content, **options):
    return plan([{"role": "user", "content": list(content)}], mm_processor_kwargs=options)


def test_videos_are_items_in_order_with_what_is_asked_of_their_frames():
    made = videos(image("x:a"), video(), text("?"), video("x:w"), num_frames=6)
    assert [(one.kind, one.url, one.num_frames) for one in made.references] == [
        ("image", "x:a", None),
        ("video", "x:v", 6),
        ("video", "x:w", 6),
    ]
    assert made.references[1].param == "/messages/0/content/1/video_url/url"
    assert videos(video(), fps=0.5).references[0].fps == 0.5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fps": 0}, InvalidRequestError),
        ({"fps": "2"}, InvalidRequestError),
        ({"num_frames": 0}, InvalidRequestError),
        ({"num_frames": 10**9}, InvalidRequestError),
        ({"fps": 1, "num_frames": 2}, InvalidRequestError),
        ({"max_pixels": 1}, UnsupportedFeatureError),
    ],
)
def test_what_is_asked_of_frames_is_checked(options, error):
    with pytest.raises(error) as caught:
        videos(video(), **options)
    assert caught.value.param.startswith("/mm_processor_kwargs")


def test_videos_stand_in_user_messages():
    with pytest.raises(InvalidRequestError, match="video"):
        parts(video(), role="system")


def test_a_video_needs_its_url():
    with pytest.raises(UnsupportedFeatureError, match="video_url"):
        parts({"type": "video_url", "video_url": None, "uuid": "known"})
