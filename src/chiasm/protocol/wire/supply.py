"""The call that hands embeddings to a generation under way. Other servers have none like it: its body is ours."""

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.protocol.contract import CONTRACT_VERSION, check_gateway
from chiasm.protocol.openai.faults import request_fault
from chiasm.protocol.wire.requests import WireRequest
from chiasm.protocol.worker import SupplyRequest

SUPPLY_PATH = "/v1/embeddings/late"

_DECODE = msgspec.json.Decoder(SupplyRequest).decode


def encode_supply(request: SupplyRequest, version: int = CONTRACT_VERSION) -> WireRequest:
    """Write the call, in the version that the worker speaks."""
    return WireRequest(SUPPLY_PATH, (msgspec.json.encode(msgspec.structs.replace(request, version=version)),))


def decode_supply(body: bytes) -> SupplyRequest:
    """Read it. Raises `InvalidRequestError` or `ContractVersionError`, never anything else."""
    try:
        request = _DECODE(body)
    except msgspec.DecodeError as error:
        raise request_fault(error) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply") from error
    check_gateway(request.version, "/version")
    return request
