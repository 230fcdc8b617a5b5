"""Which stages a worker takes, and what it refuses because of them."""

from collections.abc import Sequence

from chiasm.errors import EngineStartError, InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.worker import Role

ALL_ROLES: tuple[Role, ...] = ("encode", "prefill", "decode")


def check_roles(roles: Sequence[Role], *, has_transport: bool) -> tuple[Role, ...]:
    """The roles in path order.

    Raises:
        EngineStartError: No or unknown roles, or roles whose results nobody could take.
    """
    unknown = [role for role in roles if role not in ALL_ROLES]
    if unknown or not roles:
        raise EngineStartError(
            f"A worker cannot have the roles {list(roles)}", hint=f"Choose one or more of {', '.join(ALL_ROLES)}."
        )
    chosen = tuple(role for role in ALL_ROLES if role in roles)
    if not {"prefill", "decode"} <= set(chosen) and not has_transport:
        raise EngineStartError(
            f"A worker for {' and '.join(chosen)} alone needs a transport for its tensors",
            hint="Give it the roles prefill and decode, or a connector.",
        )
    return chosen


def check_request(request: GenerateRequest, roles: Sequence[Role], *, has_transport: bool) -> None:
    """Refuse what needs a stage that this worker has not.

    Raises:
        UnsupportedFeatureError: A role or the transport is missing.
        InvalidRequestError: The request hands its prompt over and asks for more than the first token.
    """
    if (request.hands_over_kv or request.kv is not None) and not has_transport:
        raise UnsupportedFeatureError("This worker moves no keys and values", hint="Start it with a connector.")
    if request.hands_over_kv and request.sampling.max_tokens != 1:
        raise InvalidRequestError("A prompt that is handed over ends with its first token", param="/max_tokens")
    if request.kv is None:
        require_role("prefill", roles, "compute a prompt")
    if request.kv is not None or request.sampling.max_tokens != 1:
        require_role("decode", roles, "generate more than the first token")


def require_role(role: Role, roles: Sequence[Role], purpose: str) -> None:
    """Raise `UnsupportedFeatureError` when the role is missing."""
    if role not in roles:
        raise UnsupportedFeatureError(
            f"This worker does not {purpose}: its roles are {', '.join(roles)}",
            hint=f"Send it to a worker with the role {role}.",
        )
