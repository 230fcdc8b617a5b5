import pytest

from chiasm.connectors.tcp.wire import Address, Deadline, parse_address
from chiasm.errors import TransferError

TOKEN = bytes(range(16))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.20.30.40", "::1", "fd00::1234:5"])
def test_an_address_is_read_as_it_was_written(host):
    address = Address(host, 65535, TOKEN)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:80/" + TOKEN.hex(),
        "300.1.1.1:80/" + TOKEN.hex(),
        "127.0.0.1:0/" + TOKEN.hex(),
        "127.0.0.1:65536/" + TOKEN.hex(),
        "127.0.0.1:٨٠/" + TOKEN.hex(),
        "127.0.0.1:80/" + TOKEN.hex()[2:],
        "127.0.0.1:80/" + TOKEN.hex() + "\n",
        "[127.0.0.1:80/" + TOKEN.hex(),
        "[::zz]:80/" + TOKEN.hex(),
        "http://127.0.0.1:80/" + TOKEN.hex(),
    ],
)
def test_other_words_and_names_that_would_be_looked_up_are_no_address(text):
    with pytest.raises(TransferError):
        parse_address(text)


def test_a_deadline_passes():
    assert 0 < Deadline(60).left_s() <= 60
    with pytest.raises(TimeoutError):
        Deadline(0).left_s()
