import msgspec
import pytest

from chiasm.advisor.receipts import Collected, line_of
from chiasm.errors import InvalidSettingError
from chiasm.observability.receipt import MediaSize, Receipt
from chiasm.simulator.traces.lines import TracePicture
from chiasm.simulator.traces.reading import read_requests


def receipt(name="r", came=100.0, **fields):
    usual = {"num_prompt_tokens": 50, "num_output_tokens": 7, "ttft_s": 0.1, "outcome": "finished"}
    made = {"model": "m", "e2e_s": 1.0, "stages_s": {}, "unaccounted_s": 0.0, "decode_s": 0.9, **usual, **fields}
    return Receipt(request_id=name, came_unix_s=came, **made)


def test_visual_tokens_are_shared_out_by_pixels():
    media = (MediaSize("a", 300), MediaSize("b", 100))
    line = line_of(receipt(num_visual_tokens=40, media=media))
    assert [(one.key, one.pixels, one.tokens) for one in line.pictures] == [("a", 300, 30), ("b", 100, 10)]
    assert (line.text_tokens, line.output_tokens, line.request_class) == (10, 7, "images")


@pytest.mark.parametrize(
    "fields", [{"num_output_tokens": 0}, {"num_prompt_tokens": 0}, {"outcome": "deadline_exceeded"}]
)
def test_what_says_nothing_of_its_size_is_left_out(fields):
    assert line_of(receipt(**fields)) is None


def test_each_request_is_written_once_and_read_back(tmp_path):
    found = Collected()
    later, sooner = receipt("later", 105.5), receipt("sooner", 100.0)
    for _ in range(2):
        found.add([later, sooner, receipt("failed", num_output_tokens=0)])
    assert (len(found), found.num_skipped) == (2, 1)
    (tmp_path / "trace.jsonl").write_bytes(found.lines())
    assert [one.at_s for one in read_requests(tmp_path / "trace.jsonl", TracePicture())] == [0.0, 5.5]


def test_a_trace_has_nothing_but_sizes_times_and_keys():
    found = Collected()
    found.add([receipt("secret-id", model="secret-model", media=(MediaSize("k", 4),), num_visual_tokens=4)])
    (line,) = found.lines().splitlines()
    assert set(msgspec.json.decode(line)) == {"at_s", "class", "text_tokens", "output_tokens", "pictures"}
    assert b"secret" not in line


def test_looks_that_share_nothing_are_a_gap():
    found = Collected()
    for names in ("", "ab", "bc", "bc", "de", "ef"):
        found.add([receipt(name) for name in names])
    assert (found.num_gaps, len(found)) == (1, 6)


def test_there_is_an_end_to_what_is_kept(monkeypatch):
    monkeypatch.setattr("chiasm.advisor.receipts.MAX_REQUESTS", 2)
    with pytest.raises(InvalidSettingError, match="More than 2"):
        Collected().add([receipt(str(n)) for n in range(3)])
