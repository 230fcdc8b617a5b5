"""Options are checked when a server starts, by name."""

import pytest

from chiasm.engines.vllm.ec.options import EcOptions, read_options
from chiasm.errors import InvalidSettingError


def test_defaults_and_values():
    assert read_options({}) == EcOptions()
    options = read_options({"transport": "tcp", "max_bytes": 5, "wait_s": 1, "host": "10.0.0.1", "directory": "/x"})
    assert (options.transport, options.max_bytes, options.wait_s) == ("tcp", 5, 1.0)


@pytest.mark.parametrize("extra", [{"transport": "pigeon"}, {"max_bytes": 0}, {"wait_s": -1}, {"wait": 1}, {"host": 1}])
def test_what_is_wrong_is_named(extra):
    with pytest.raises(InvalidSettingError) as error:
        read_options(extra)
    assert next(iter(extra)) in error.value.message
    assert "max_bytes" in error.value.hint
