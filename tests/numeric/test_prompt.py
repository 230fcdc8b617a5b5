"""Token ids of prompts against Hugging Face's `apply_chat_template` and placeholder expansion, and of streams against
`decode`."""

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import chiasm
from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.output.stream import OutputStream
from chiasm.engines.embedded.prompt.render import PromptRenderer
from chiasm.engines.embedded.sampling.sampler import SampledToken
from chiasm.protocol.generation import ChatPrompt, ItemPart, Message, SamplingParams, TextPart, TextPrompt

DIRECTORY = Path(chiasm.__file__).parent / "models" / "tiny_vlm"
REFERENCE = AutoTokenizer.from_pretrained(DIRECTORY, local_files_only=True)
FAMILY = family_for(DIRECTORY)
RENDERER = PromptRenderer(DIRECTORY, FAMILY)
SIZES = [(64, 64), (96, 64), (320, 200), (33, 77), (448, 448)]
PHRASES = [
    "What is in the picture?",
    " leading and trailing ",
    "한국어로 답해 주세요. 😀👩‍👩‍👧",
    "def f(x):\n\treturn x  # <b>html</b> & |pipes|",
    "line\n\n\nbreaks\r\n",
    "{{ braces }} {% tags %} \\n",
    "1234567890 3.14159",
    "naïve café — “quotes”",
    "",
    "x",
    "   ",
    "\u200b\u00a0\u3000",
]


def conversation(seed: int) -> tuple[tuple[Message, ...], list[tuple[int, int]]]:
    """A random conversation and the sizes of its pictures."""
    rng = random.Random(seed)
    sizes = rng.sample(SIZES, rng.randint(0, 4))
    roles = rng.choice([[], ["system"]]) + ["user", "assistant"] * rng.randint(0, 2) + ["user"]
    parts = [[TextPart(rng.choice(PHRASES)) for _ in range(rng.randint(1, 3))] for _ in roles]
    for item in [*range(len(sizes)), *(rng.randrange(len(sizes)) for _ in range(rng.randint(0, 1) if sizes else 0))]:
        turn = rng.choice([at for at, role in enumerate(roles) if role == "user"])
        parts[turn].insert(rng.randint(0, len(parts[turn])), ItemPart(item))
    return tuple(Message(role, tuple(p)) for role, p in zip(roles, parts, strict=True)), sizes


def as_hugging_face(message: Message) -> dict:
    if len(message.parts) == 1 and isinstance(message.parts[0], TextPart):
        return {"role": message.role, "content": message.parts[0].text}
    content = [
        {"type": "text", "text": p.text} if isinstance(p, TextPart) else {"type": "image"} for p in message.parts
    ]
    return {"role": message.role, "content": content}


@pytest.mark.parametrize("seed", range(150))
def test_chat_is_tokenised_as_hugging_face_does(seed):
    messages, sizes = conversation(seed)
    plans = [FAMILY.preparer.plan(*size) for size in sizes]
    text = REFERENCE.apply_chat_template(
        list(map(as_hugging_face, messages)), tokenize=False, add_generation_prompt=True
    )
    pieces = text.split("<|image_pad|>")
    items = [part.item for message in messages for part in message.parts if isinstance(part, ItemPart)]
    # What the Hugging Face processor does: repeat the placeholder's text once per embedding, then tokenise.
    expanded = pieces[0] + "".join(
        "<|image_pad|>" * plans[item].num_embeddings + piece for item, piece in zip(items, pieces[1:], strict=True)
    )
    rendered = RENDERER.render(ChatPrompt(messages), plans)
    assert rendered.token_ids == REFERENCE(expanded, add_special_tokens=False)["input_ids"]
    assert rendered.items == items


@pytest.mark.parametrize("seed", range(40))
def test_text_only_chat_is_apply_chat_template(seed):
    messages, _ = conversation(seed)
    messages = tuple(
        Message(m.role, tuple(p for p in m.parts if isinstance(p, TextPart)) or (TextPart("x"),)) for m in messages
    )
    expected = REFERENCE.apply_chat_template(
        list(map(as_hugging_face, messages)), tokenize=True, add_generation_prompt=True, return_dict=True
    )
    assert RENDERER.render(ChatPrompt(messages), []).token_ids == expected["input_ids"]


@pytest.mark.parametrize("start", ["Sure, ", "ends in text", "ends in space ", "  "])
def test_continued_chat_is_apply_chat_template(start):
    messages = (Message("user", (TextPart("Go on"),)), Message("assistant", (TextPart(start),)))
    expected = REFERENCE.apply_chat_template(
        list(map(as_hugging_face, messages)), tokenize=True, continue_final_message=True, return_dict=True
    )
    prompt = ChatPrompt(messages, continue_final_message=True)
    assert RENDERER.render(prompt, []).token_ids == expected["input_ids"]


@pytest.mark.parametrize("text", [phrase for phrase in PHRASES if phrase])
def test_completion_is_the_tokenizers_call(text):
    assert RENDERER.render(TextPrompt(text), []).token_ids == REFERENCE(text)["input_ids"]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_streamed_text_is_decode(seed, skip):
    """Of random ids, so that characters break, and of text."""
    rng = random.Random(seed)
    ids = [rng.randrange(len(REFERENCE)) for _ in range(60)]
    if seed % 2:
        ids = REFERENCE(" ".join(rng.choices(PHRASES, k=8)))["input_ids"]
    params = SamplingParams(max_tokens=len(ids), ignore_eos=True, skip_special_tokens=skip)
    stream = OutputStream(0, params, RENDERER.tokenizer, RENDERER.tokenizer.eos_token_ids)
    text = "".join(stream.push(SampledToken(token_id))[0].text for token_id in ids)
    assert text == REFERENCE.decode(ids, skip_special_tokens=skip)
