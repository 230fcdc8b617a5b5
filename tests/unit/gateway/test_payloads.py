"""Cutting large payloads out of a body changes how it is parsed, never what it says."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.errors import RequestError
from chiasm.gateway.exchange.payloads import MIN_CUT_BYTES, CutBody
from chiasm.gateway.openai.chat import ChatDialect

BIG = "QUJD" * (MIN_CUT_BYTES // 4)
OTHER = BIG[:-4] + "AAAA"
HEAD = "data:image/png;base64,"


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def body_of(*content, **fields):
    return json.dumps({"messages": [{"role": "user", "content": list(content)}], **fields}).encode()


def urls_of(cut, plan):
    references = cut.restored(plan.references)
    if references is None:
        return None
    return [
        reference.url
        if reference.payload is None
        else reference.url.partition("@")[0] + bytes(reference.payload).decode()
        for reference in references
    ]


def test_large_payloads_are_cut_and_come_back_in_place():
    small = HEAD + "QUJD"
    body = body_of(image(HEAD + BIG), {"type": "text", "text": "and"}, image(small), image(HEAD + OTHER))
    cut = CutBody(body)
    assert cut.num_cuts == 2
    assert len(cut.rest) < 1000
    plan = ChatDialect().plan(cut.rest)
    assert urls_of(cut, plan) == [HEAD + BIG, small, HEAD + OTHER]
    assert [reference.param for reference in plan.references] == [
        f"/messages/0/content/{i}/image_url/url" for i in (0, 2, 3)
    ]


def test_the_same_payload_twice_stays_one_url():
    cut = CutBody(body_of(image(HEAD + BIG), image(HEAD + OTHER), image(HEAD + BIG)))
    first, other, again = cut.restored(ChatDialect().plan(cut.rest).references)
    assert first.url == again.url != other.url
    assert first.payload is again.payload


def test_a_payload_in_a_text_is_noticed():
    cut = CutBody(body_of(image(HEAD + BIG), {"type": "text", "text": HEAD + OTHER}))
    assert cut.num_cuts == 2
    assert cut.restored(ChatDialect().plan(cut.rest).references) is None


def test_a_key_that_stands_twice_is_noticed():
    part = json.dumps(image(HEAD + BIG)).replace('"url"', f'"url": "{HEAD}{OTHER}", "url"')
    cut = CutBody(b'{"messages": [{"role": "user", "content": [%b]}]}' % part.encode())
    assert cut.num_cuts == 2
    assert cut.restored(ChatDialect().plan(cut.rest).references) is None


@pytest.mark.parametrize(
    "url",
    [HEAD + BIG.replace("Q", "\\/", 1), HEAD + BIG + "\\", HEAD + BIG + '\\"', "data:image/p\\ng;base64," + BIG,
     HEAD + "QUJD", "https://x/" + BIG, "data:image/png," + BIG],
)  # fmt: skip
def test_what_holds_an_escape_or_is_no_large_data_url_is_left_alone(url):
    body = b'{"url": "%b"}' % url.encode()
    cut = CutBody(body)
    assert (cut.num_cuts, cut.rest) == (0, body)


def test_a_mark_cannot_be_made_by_a_caller():
    cut = CutBody(body_of(image(HEAD + BIG), image(HEAD + "@0123456789abcdef-0")))
    references = cut.restored(ChatDialect().plan(cut.rest).references)
    assert references[1].payload is None


@pytest.mark.parametrize("end", ["", '"', '"}', '"}}]}]}, '])
def test_a_broken_body_stays_broken(end):
    body = body_of(image(HEAD + BIG)).partition(b'"}}')[0] + end.encode()
    with pytest.raises(RequestError):
        ChatDialect().plan(CutBody(body).rest)


texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [BIG, OTHER, HEAD + BIG, HEAD + OTHER, HEAD, '"' + HEAD + BIG, "\\" + HEAD + BIG, HEAD + BIG + '"']
    ),
)
parts = st.lists(st.one_of(texts.map(image), texts.map(lambda text: {"type": "text", "text": text})), max_size=5)


@settings(max_examples=60, deadline=None)
@given(parts, st.sampled_from([(", ", ": "), (",", ":"), (" ,\n ", " : ")]))
def test_cut_and_whole_bodies_mean_the_same(content, separators):
    content = [*content, {"type": "text", "text": "end"}]
    message = {"messages": [{"role": "user", "content": content}]}
    body = json.dumps(message, separators=separators).encode()
    whole = ChatDialect().plan(body)
    cut = CutBody(body)
    plan = ChatDialect().plan(cut.rest)
    urls = urls_of(cut, plan)
    if urls is not None:
        assert urls == [reference.url for reference in whole.references]
        assert plan.prompts == whole.prompts
    else:
        assert any(HEAD + "Q" in part.get("text", "") for part in content)
