"""The page needs nothing else, shows numbers that are registered alone, and lets no markup through."""

import re
from html.parser import HTMLParser

import msgspec
import pytest

from chiasm.reporting.blocks import Lines, value
from chiasm.reporting.charts import lines_svg
from chiasm.reporting.comparison import compare
from chiasm.reporting.markdown import markdown_page
from chiasm.reporting.numbers import NUMBERS
from chiasm.reporting.page import html_page
from chiasm.reporting.sections import sections_of
from chiasm.reporting.units import in_bytes, in_count, in_ms, in_percent
from tests.unit.reporting.reports import refusal, report

_WORDS_WITH_DIGITS = re.compile(
    r"p50|p95|\d x \d+²|95 %|0\.05|10%|\d+ of \d+( latencies are worse, \d+ better)?|open-\d|1x448|0\.1\.0"
    r"|float32|qwen3_vl|sha256|SHA-256|E2EL|\d{4}-\d\d-\d\d \d\d:\d\d|\d+ open|all \d+ comparisons"
)
"""Digits of names, of statistics' fixed levels, and of the plan."""


class _Numbers(HTMLParser):
    """Which numbers stand where they are named, and which text with digits does not."""

    def __init__(self):
        super().__init__()
        self.named, self.loose, self._stack = set(), [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if "data-number" in attributes:
            self.named.add(attributes["data-number"])
        if tag not in ("meta", "line", "circle", "polyline", "i"):
            self._stack.append((tag, attributes))

    def handle_endtag(self, tag):
        if self._stack and self._stack[-1][0] == tag:
            self._stack.pop()

    def handle_data(self, data):
        is_named = any("data-number" in attributes for _, attributes in self._stack)
        is_plain = any(tag in ("style", "title", "details") for tag, _ in self._stack)
        left = _WORDS_WITH_DIGITS.sub("", data)
        if not is_named and not is_plain and any(character.isdigit() for character in left):
            self.loose.append(data)


@pytest.fixture(scope="module")
def page():
    made = report()
    return html_page("Report", sections_of(made, compare(report(50.0, seed=9), made, 0.1)))


def test_every_number_is_in_the_table_of_numbers(page):
    found = _Numbers()
    found.feed(page)
    texts = [text for text in found.loose if "media." not in text and "engine." not in text and "max_" not in text]
    assert not [text for text in texts if text not in _policy_texts()], texts
    assert found.named <= NUMBERS.keys()
    assert len(found.named) > 40


def _policy_texts():
    policy = report().policy
    kept = {text for one in policy.kept for text in (one.what, one.holds, one.where, one.bound, *one.deleted_by)}
    return kept | {rule.says for rule in policy.rules}


def test_nothing_of_it_comes_from_elsewhere(page):
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)
    assert "url(" not in page
    assert "@import" not in page


def test_names_and_messages_become_text(page):
    assert "tiny <vlm>" not in page
    assert "not served &lt;here&gt;" in page


def test_what_was_not_measured_alone_is_not_called_so():
    made = report()
    some = msgspec.structs.replace(made, concurrency=made.concurrency[1:])
    shown = html_page("Report", sections_of(some)[:1])
    assert "alone" in html_page("Report", sections_of(made)[:1])
    assert "alone" not in shown
    assert "2 open" in shown


def test_names_and_messages_break_no_markdown_table():
    odd = msgspec.structs.replace(refusal(code=None), message="one\n| two <script> |")
    text = markdown_page("a\n<b>", sections_of(report(refusals=(odd,))))
    assert "| one \\| two &lt;script> \\| |" in text
    assert text.startswith("# a &lt;b>\n")


def test_what_was_taken_is_marked():
    page = html_page("Report", sections_of(report(refusals=(refusal(code=None),))))
    assert re.search(r'<tr class="mark"><td>a file</td>', page)
    assert "0 of 1" in page


def test_tags_are_balanced(page):
    opened = re.findall(r"<(\w+)(?: [^>]*)?(?<!/)>", page)
    for tag in ("section", "table", "tr", "td", "div", "svg", "figure", "dl", "data", "details", "ul", "li"):
        assert opened.count(tag) == page.count(f"</{tag}>"), tag


def test_markdown_has_the_same_sections_and_rows():
    sections = sections_of(report())
    text = markdown_page("Report", sections)
    assert all(f"## {one.title}" in text for one in sections)
    assert "| kv slots |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines)


def test_a_report_of_a_text_model_without_anything_has_a_page():
    made = report(refusals=())
    bare = type(made)(**{name: getattr(made, name) for name in made.__struct_fields__} | {
        "stages": (), "concurrency": (), "caches": (), "examples": (), "growth": None, "memory": (),
    })  # fmt: skip
    assert "Limits and policy" in html_page("Report", sections_of(bare))
    assert markdown_page("Report", sections_of(bare))


def test_curves_stay_inside_their_frame():
    curve = Lines("t", "open", (("a", ((1, value("ttft_p50", 3.0)), (64, value("ttft_p50", 977.0)))),))
    svg = lines_svg(curve)
    numbers = [float(number) for number in re.findall(r'c[xy]="([\d.]+)"', svg)]
    assert min(numbers) > 0
    assert max(numbers) < 320
    assert "1,000 ms" in svg


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (in_bytes(0), "0 B"),
        (in_bytes(1023), "1.00 KiB"),
        (in_bytes(256 * 2**20), "256 MiB"),
        (in_bytes(-1536), "-1.50 KiB"),
        (in_bytes(None), "-"),
        (in_ms(0.0), "0 ms"),
        (in_ms(9.994), "9.99 ms"),
        (in_ms(1234.0), "1,234 ms"),
        (in_ms(12_345.0), "12.3 s"),
        (in_count(86_400.0), "86,400"),
        (in_count(2.234), "2.23"),
        (in_percent(0.0123), "1.2 %"),
    ],
)
def test_numbers_have_units_and_three_digits(shown, wanted):
    assert shown == wanted
