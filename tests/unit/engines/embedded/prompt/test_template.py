import pytest

import chiasm.engines.embedded.prompt.template as template_module
from chiasm.engines.embedded.prompt.template import ChatTemplate, read_chat_template
from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.errors import ContextLengthError, DeadlineExceededError, EngineStartError, InvalidRequestError
from tests.unit.engines.embedded.prompt.directories import (
    ALTERNATING,
    PACKAGED,
    PARTS_ONLY,
    PRINTS_PARTS,
    STRINGS_ONLY,
    model_directory,
)

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Well, "}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"eos_token": "</s>"})


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_template_is_found_in_every_file_that_models_use(tmp_path, name):
    directory = model_directory(tmp_path, template=STRINGS_ONLY, template_file=name)
    found = read_chat_template(ModelTokenizer(directory))
    assert found.render([USER]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_jinja_file_wins_over_the_legacy_one(tmp_path):
    model_directory(tmp_path, template="old", template_file="chat_template.json")
    (tmp_path / "chat_template.jinja").write_text("new")
    assert read_chat_template(ModelTokenizer(tmp_path)).render([USER]) == "new"


def test_default_of_several_templates_is_taken(tmp_path):
    directory = model_directory(
        tmp_path,
        template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
        template_file="tokenizer_config.json",
    )
    assert read_chat_template(ModelTokenizer(directory)).render([USER]) == "d"


def test_no_template_is_none(tmp_path):
    assert read_chat_template(ModelTokenizer(model_directory(tmp_path))) is None


@pytest.mark.parametrize("written", ['{"chat_template": 5}', "[]", "{", '{"a":' + "[" * 100_000])
def test_a_legacy_file_that_is_none_stops_the_start(tmp_path, written):
    tokenizer = ModelTokenizer(model_directory(tmp_path))
    (tmp_path / "chat_template.json").write_text(written)
    with pytest.raises(EngineStartError, match="chat"):
        read_chat_template(tokenizer)


@pytest.mark.parametrize("written", ["[]", "{", '{"a":' + "[" * 100_000])
def test_a_broken_generation_configuration_stops_the_start(tmp_path, written):
    directory = model_directory(tmp_path)
    (directory / "generation_config.json").write_text(written)
    with pytest.raises(EngineStartError, match="generation_config"):
        ModelTokenizer(directory)


def test_broken_template_stops_the_start():
    with pytest.raises(EngineStartError, match="compile"):
        template("{% for %}")


def test_templates_see_special_tokens():
    assert template(ALTERNATING).render([USER]) == "</s>Hi"


def test_own_words_of_the_template_reach_the_caller():
    with pytest.raises(InvalidRequestError, match="System role not supported") as caught:
        template(ALTERNATING).render([{"role": "system", "content": "x"}, USER])
    assert caught.value.param == "/messages"


def test_other_failures_do_not_quote_the_conversation():
    with pytest.raises(InvalidRequestError) as caught:
        template("{{ messages[0].content + 1 }}").render([{"role": "user", "content": "secret"}])
    assert "secret" not in caught.value.message
    assert "TypeError" in caught.value.message


def test_template_cannot_reach_the_interpreter():
    with pytest.raises(InvalidRequestError, match="SecurityError"):
        template("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([USER])


def test_output_is_bounded(monkeypatch):
    monkeypatch.setattr(template_module, "MAX_RENDERED_CHARS", 1000)
    with pytest.raises(ContextLengthError, match="1000"):
        template("{% for i in range(200) %}{{ messages[0].content }}{% endfor %}").render(
            [USER | {"content": "x" * 10}]
        )


def test_time_is_bounded(monkeypatch):
    monkeypatch.setattr(template_module, "_RENDER_TIMEOUT_S", 0.05)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"
    with pytest.raises(DeadlineExceededError):
        template(endless).render([USER])


@pytest.mark.parametrize("content", ["Well, ", [{"type": "text", "text": "Well, "}, {"type": "image"}]])
def test_final_message_is_continued_where_it_ends(tmp_path, content):
    packaged = read_chat_template(ModelTokenizer(PACKAGED))
    text = packaged.render([USER, {"role": "assistant", "content": content}], continue_final_message=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, "
    assert not isinstance(content, list) or content[0]["text"] == "Well, "  # the caller's message is untouched


def test_template_that_trims_also_trims_what_is_continued():
    text = template(STRINGS_ONLY).render([USER, ANSWER], continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nWell,")


@pytest.mark.parametrize(
    ("source", "content"), [("{{ messages[0].content }}", "x"), ("{{ messages[-1].content }}", [{"type": "image"}])]
)
def test_final_message_that_cannot_be_continued_is_refused(source, content):
    final = {"role": "assistant", "content": content}
    with pytest.raises(InvalidRequestError, match="continued"):
        template(source).render([USER, final], continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "as_string", "as_parts"),
    [
        (STRINGS_ONLY, True, False),
        (PARTS_ONLY, False, True),
        (PRINTS_PARTS, True, False),
        ((PACKAGED / "chat_template.jinja").read_text(), True, True),
        ("nothing", False, False),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_what_a_template_does_with_text_is_tried_out(source, as_string, as_parts, role):
    tried = template(source)
    for _ in range(2):
        assert (tried.keeps_text(role, as_parts=False), tried.keeps_text(role, as_parts=True)) == (as_string, as_parts)


def test_a_role_that_is_refused_keeps_nothing():
    tried = template(ALTERNATING)
    assert [tried.keeps_text(role, as_parts=False) for role in ("system", "user", "assistant")] == [False, True, True]
