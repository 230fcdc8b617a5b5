"""The call that hands embeddings to a generation under way. Other servers have none like it: its body is ours."""

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.protocol.media import CONTRACT_VERSION
from chiasm.protocol.openai.faults import request_fault
from chiasm.protocol.wire.requests import WireRequest
from chiasm.protocol.worker import SupplyRequest

SUPPLY_PATH = "/v1/embeddings/late"

_DECODE = msgspec.json.Decoder(SupplyRequest).decode


def encode_supply(request: SupplyRequest) -> WireRequest:
    """Write the call."""
    return WireRequest(SUPPLY_PATH, (msgspec.json.encode(request),))


def decode_supply(body: bytes) -> SupplyRequest:
    """Read it. Raises `InvalidRequestError`, never anything else."""
    try:
        request = _DECODE(body)
    except msgspec.DecodeError as error:
        raise request_fault(error) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply") from error
    if request.version != CONTRACT_VERSION:
        raise InvalidRequestError(
            f"Version {request.version} of the worker contract; this worker speaks {CONTRACT_VERSION}",
            hint="Run the same version of Chiasm everywhere",
        )
    return request
