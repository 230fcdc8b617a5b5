"""Addresses of shared memory that is known to the reader already, whose text is then looked at less closely."""

import pytest

from chiasm.connectors.shm.transport import ShmTransport
from chiasm.errors import TransferError
from tests.integration.test_transports import MIB


@pytest.mark.parametrize(
    "numbers", ["0/18446744073709551616", f"0/{'9' * 40}", f"{'9' * 40}/1", "9999999/1", "-1/1", "1", ""]
)
def test_numbers_that_no_arena_has_are_refused_also_where_the_arena_is_known(numbers):
    producer, consumer = ShmTransport(max_bytes=MIB), ShmTransport(max_bytes=MIB)
    address = producer.put("a", b"abc", ttl_s=60)
    assert bytes(consumer.get(address, 3, timeout_s=1)) == b"abc"
    for call in (lambda text: consumer.get(text, 3, timeout_s=1), lambda text: consumer.release(text, timeout_s=1)):
        with pytest.raises(TransferError):
            call(f"{address.split('/')[0]}/{numbers}")
    assert bytes(consumer.get(address, 3, timeout_s=1)) == b"abc"
    for transport in (consumer, producer):
        transport.close()
