"""Attribution of the time to the first token: every instant once, nothing negative, nothing lost."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.observability.receipt import STAGES, Span, StageClock, attribute

_TIMES = st.integers(min_value=-20, max_value=120).map(lambda ms: ms / 1000)
_SPANS = st.lists(
    st.builds(
        lambda stage, a, b: Span(stage, min(a, b), max(a, b)), st.sampled_from([*STAGES, "unknown"]), _TIMES, _TIMES
    ),
    max_size=25,
)
_UNTIL = st.integers(min_value=0, max_value=100).map(lambda ms: ms / 1000)


def _covered(spans: list[Span], until_s: float) -> float:
    """Length of the union of the known spans inside [0, until_s], by walking it in milliseconds."""
    total = 0
    for ms in range(round(until_s * 1000)):
        middle = (ms + 0.5) / 1000
        total += any(s.stage in STAGES and s.start_s < middle < s.end_s for s in spans)
    return total / 1000


@given(_SPANS, _UNTIL)
def test_stages_add_up_to_what_any_stage_covers(spans, until_s):
    stages = attribute(spans, until_s)
    assert all(seconds > 0 for seconds in stages.values())
    assert set(stages) <= set(STAGES)
    assert sum(stages.values()) == pytest.approx(_covered(spans, until_s), abs=1e-9)
    assert sum(stages.values()) <= until_s + 1e-9


@given(_SPANS, _UNTIL)
def test_order_and_repetition_of_spans_do_not_matter(spans, until_s):
    assert attribute(spans, until_s) == pytest.approx(attribute([*reversed(spans), *spans], until_s))


@given(_SPANS, _UNTIL)
def test_no_stage_is_charged_more_than_it_took(spans, until_s):
    for stage, seconds in attribute(spans, until_s).items():
        assert seconds <= _covered([s for s in spans if s.stage == stage], until_s) + 1e-9


def test_overlap_is_charged_to_the_stage_further_along():
    spans = [Span("decode_media", 0.0, 0.3, item=1), Span("encode", 0.1, 0.2, item=0)]
    assert attribute(spans, 1.0) == pytest.approx({"decode_media": 0.2, "encode": 0.1})


def test_two_items_in_one_stage_count_once():
    spans = [Span("fetch", 0.0, 0.4, item=0), Span("fetch", 0.1, 0.6, item=1)]
    assert attribute(spans, 1.0) == pytest.approx({"fetch": 0.6})


def test_a_span_inside_another_stage_splits_it():
    spans = [Span("prefill_queue", 0.0, 1.0), Span("prefill", 0.4, 0.6)]
    assert attribute(spans, 1.0) == pytest.approx({"prefill_queue": 0.8, "prefill": 0.2})


def test_work_before_the_request_and_after_the_first_token_is_cut_off():
    assert attribute([Span("encode", -1.0, 0.25), Span("prefill", 0.5, 9.0)], 0.75) == pytest.approx(
        {"encode": 0.25, "prefill": 0.25}
    )


def test_nothing_is_charged_when_there_is_nothing():
    assert attribute([], 1.0) == {}
    assert attribute([Span("encode", 0.5, 0.5)], 1.0) == {}
    assert attribute([Span("encode", 0.0, 1.0)], 0.0) == {}


@given(_TIMES, _TIMES, _TIMES)
def test_a_shifted_span_keeps_its_length(start_s, end_s, by_s):
    shifted = Span("encode", start_s, end_s, item=3).shifted(by_s)
    assert shifted.end_s - shifted.start_s == pytest.approx(end_s - start_s)
    assert shifted.start_s == pytest.approx(start_s + by_s)
    assert (shifted.stage, shifted.item) == ("encode", 3)


def test_the_clock_records_a_block_that_raises():
    clock = StageClock()

    def break_off():
        time.sleep(0.002)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), clock.stage("decode_media", item=1):
        break_off()
    (span,) = clock.spans
    assert (span.stage, span.item) == ("decode_media", 1)
    assert 0.002 <= span.end_s - span.start_s <= clock.now_s()


def test_spans_added_from_many_threads_are_all_kept():
    clock = StageClock()

    def work(item: int) -> None:
        for _ in range(200):
            with clock.stage("prepare", item=item):
                pass

    threads = [threading.Thread(target=work, args=(item,)) for item in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(clock.spans) == 8 * 200
