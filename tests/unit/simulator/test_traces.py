import json

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traces import reading
from chiasm.simulator.traces.lines import TracePicture
from chiasm.simulator.traces.reading import MAX_LINE_BYTES, read_requests
from chiasm.simulator.traces.trace import read_trace

USUAL = TracePicture(pixels=1000, tokens=10)


def written(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines) + "\n")
    return path


def test_our_own_lines_come_in_order_of_time_from_zero(tmp_path):
    picture = {"key": "k", "pixels": 5, "tokens": 2}
    path = written(
        tmp_path,
        {"at_s": 7.5, "class": "images", "text_tokens": 9, "output_tokens": 3, "pictures": [picture, picture]},
        {"at_s": 5.0, "text_tokens": 4},
    )
    text, images = read_requests(path, USUAL)
    assert (text.number, text.at_s, text.prompt_tokens, text.prefix) == (0, 0.0, 4, "")
    assert (images.number, images.at_s, images.prompt_tokens, images.class_name) == (1, 2.5, 13, "images")
    assert images.pictures[0].identity == images.pictures[1].identity == "k"
    assert images.prefix == "k k"


def test_lines_of_mooncakes_form(tmp_path):
    path = written(
        tmp_path,
        {"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 3000, "input_length": 30, "output_length": 5, "images": 2, "session_id": "ignored"},
    )
    text, images = read_requests(path, USUAL)
    assert (text.blocks, text.text_tokens) == (("block-1", "block-2"), 1024)
    assert (images.at_s, images.prompt_tokens, len(images.pictures)) == (2.0, 50, 2)


def test_lines_of_aiperfs_records(tmp_path):
    path = written(
        tmp_path,
        {
            "metadata": {"request_start_ns": 2_000_000_000},
            "metrics": {"input_sequence_length": {"value": 77, "unit": "tokens"}},
        },
        {"metadata": {"request_start_ns": 2_500_000_000}, "metrics": {}, "error": {"code": 500}},
    )
    assert [(one.at_s, one.text_tokens) for one in read_requests(path, USUAL)] == [(0.0, 77), (0.5, 1)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["", "   "], "no requests"),
        (["{"], "Line 1"),
        ([{"text": "hello"}], "none of at_s"),
        ([{"at_s": 0}, {"at_s": "soon"}], "Line 2"),
        ([{"at_s": -1}], "Line 1"),
        (['{"at_s": 1e999}'], "Line 1"),
        (['{"at_s": NaN}'], "Line 1"),
        ([{"at_s": 0, "output_tokens": 10**12}], "Line 1"),
        ([{"at_s": 0, "pictures": [{"pixels": 0}]}], "Line 1"),
        ([{"at_s": 0, "pictures": [{}] * 10_001}], "Line 1"),
        ([{"at_s": 0, "class": "x" * 200}], "Line 1"),
        (['{"at_s": ' + "[" * 100_000 + "]" * 100_000 + "}"], "Line 1"),
        ([{"timestamp": 0}], "input_length"),
        ([{"timestamp": 0, "input_length": 5, "images": 10**9}], "Line 1"),
        ([{"metadata": 3}], "Line 1"),
        ([{"metadata": {"request_start_ns": 10**400}}], "Line 1"),
        (['{"at_s": 0, "x": "' + "y" * (MAX_LINE_BYTES + 9) + '"}'], "longer than"),
    ],
)
def test_what_strangers_wrote_is_refused_with_the_line(tmp_path, lines, said):
    with pytest.raises(InvalidSettingError, match=said):
        read_requests(written(tmp_path, *lines), USUAL)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"at_s": 0, "class": "\xff\xfe"}\n')
    with pytest.raises(InvalidSettingError, match="Line 1"):
        read_requests(path, USUAL)


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(InvalidSettingError, match="cannot be read"):
        read_requests(tmp_path, USUAL)


def lines_of(count):
    return [
        {"at_s": 0.5 * n, "class": "images", "output_tokens": 10, "pictures": [{"key": f"p{n % 10}", "tokens": 8}]}
        for n in range(count)
    ]


def test_a_trace_is_like_its_requests(tmp_path):
    trace = read_trace(written(tmp_path, *lines_of(40)), USUAL, speed=2.0)
    (kind,) = trace.likeness.classes
    assert trace.likeness.rate_per_s == pytest.approx(4.0)
    assert (kind.num_images, kind.visual_tokens, kind.output_tokens, kind.repeat_share) == (1, 8, 10, 0.75)


def test_parts_of_a_trace_begin_at_zero_and_share_nothing(tmp_path):
    trace = read_trace(written(tmp_path, *lines_of(40)), USUAL)
    parts = [trace.part(number, 4) for number in range(4)]
    assert [part[0].at_s for part in parts] == [0.0] * 4
    assert sorted(one.number for part in parts for one in part) == list(range(40))


def test_too_short_a_trace_says_so(tmp_path):
    with pytest.raises(InvalidSettingError, match="19 requests"):
        read_trace(written(tmp_path, *lines_of(19)), USUAL)


def test_blocks_that_came_before_are_not_computed_again(tmp_path):
    line = {"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}
    path = written(tmp_path, *({**line, "timestamp": 10_000 * n} for n in range(25)))
    trace = read_trace(path, USUAL)
    costs = Calibration(prefill=Cost(per_unit_s=0.001), step=Cost(fixed_s=0.001), max_step_tokens=2048)
    ttft_s = simulate(aggregated(1), trace.likeness, costs, requests=trace.requests).record.ttft_s
    assert list(ttft_s) == pytest.approx([1.025] + [0.001] * 24)


@pytest.mark.parametrize(
    "line",
    [
        {"timestamp": 1, "input_length": 1, "images": 10_000},
        {"timestamp": 1, "input_length": 1, "hash_ids": [1] * 30_000},
        {"at_s": 1, "pictures": [{}] * 10_000},
        {"at_s": 1, "pictures": [{"key": "k" * 128}] * 9_000},
    ],
    ids=["images", "blocks", "pictures", "keys"],
)
def test_a_trace_of_few_bytes_that_needs_much_memory_is_refused_by_the_line(tmp_path, monkeypatch, line):
    monkeypatch.setattr(reading, "MAX_TRACE_BYTES", 10 * 2**20)
    assert len(read_requests(written(tmp_path, *[line] * 2), USUAL)) == 2
    with pytest.raises(InvalidSettingError, match=r"Line [34] .* more than 0.00976562 GiB of memory"):
        read_requests(written(tmp_path, *[line] * 20), USUAL)
