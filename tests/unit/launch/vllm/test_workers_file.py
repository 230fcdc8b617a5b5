"""The file that names servers which run already."""

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.vllm.workers_file import read_workers

ENCODER = '[[workers]]\nurl = "http://10.0.0.7:8000"\nroles = ["encode"]\n'


def written(tmp_path, text):
    path = tmp_path / "workers.toml"
    path.write_text(text)
    return str(path)


def test_workers_have_names_of_their_own_or_those_of_their_places(tmp_path):
    more = '[[workers]]\nurl = "http://b:1"\nroles = ["prefill", "decode"]\nname = "pd"\ndata_parallel = 2\n'
    first, second = read_workers(written(tmp_path, ENCODER + more))
    assert (first.name, first.roles, first.data_parallel) == ("10.0.0.7:8000", ("encode",), 1)
    assert (second.name, second.roles, second.data_parallel) == ("pd", ("prefill", "decode"), 2)
    (socket,) = read_workers(written(tmp_path, '[[workers]]\nurl = "unix:/run/e.sock"\nroles = ["encode"]'))
    assert socket.name == "e.sock"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "workers"),
        ("workers = []", "length"),
        ('[[workers]]\nurl = "http://a"', "roles"),
        (ENCODER + 'role = "x"', "role"),
        (ENCODER.replace('"encode"', '"encoder"'), "encoder"),
        (ENCODER + ENCODER, "two workers"),
        ("[[workers", "workers"),
        (ENCODER.replace("http://10.0.0.7:8000", "10.0.0.7:8000"), r"'10\.0\.0\.7:8000' is no address"),
        (ENCODER.replace("http:", "https:"), "is no address"),
        (ENCODER + 'kv_bootstrap = "10.0.0.7:8998"', r"'10\.0\.0\.7:8998' is no address"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_shows_how(tmp_path, text, what):
    with pytest.raises(InvalidSettingError, match=what) as caught:
        read_workers(written(tmp_path, text))
    assert caught.value.hint


def test_a_file_that_is_not_there_is_a_plain_error(tmp_path):
    with pytest.raises(InvalidSettingError, match=r"nobody\.toml"):
        read_workers(str(tmp_path / "nobody.toml"))
