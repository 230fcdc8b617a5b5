"""The connector's options, as they stand in `ec_connector_extra_config`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError


class EcOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both roles read the same names; what only one of them uses says so.

    `transport`: a producer offers over it; a consumer that names 'shm' refuses addresses of other hosts. `max_bytes`:
    bound of what a producer offers, and of what a consumer keeps. `ttl_s`: how long a producer offers an embedding.
    `hold_s`: how long it does not make room at a new embedding's cost. `wait_s`: how long a consumer lets a request
    wait. `host`: where a producer listens with 'tcp'. `directory`: where a producer's worker leaves receipts for its
    scheduler. `model_revision` and `width` (of an embedding row) replace what is worked out from the model.
    """

    transport: Literal["shm", "tcp"] = "shm"
    max_bytes: Annotated[int, Meta(ge=1)] = 512 * 2**20
    ttl_s: Annotated[float, Meta(gt=0)] = 60.0
    hold_s: Annotated[float, Meta(ge=0)] = 5.0
    wait_s: Annotated[float, Meta(gt=0)] = 2.0
    host: str = "127.0.0.1"
    directory: str = ""
    model_revision: str = ""
    width: Annotated[int, Meta(ge=1)] | None = None


def read_options(extra_config: Mapping[str, object]) -> EcOptions:
    """Raises `InvalidSettingError` with the field's name; a name that is not known is one of the reasons."""
    try:
        return msgspec.convert(dict(extra_config), EcOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(EcOptions.__struct_fields__)
        raise InvalidSettingError(
            f"ec_connector_extra_config of ChiasmECConnector: {error}", hint=f"Known options: {known}"
        ) from error
