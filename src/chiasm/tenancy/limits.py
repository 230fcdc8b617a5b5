"""What a tenant may use, and what it has used."""

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import RateLimitedError
from chiasm.tenancy.fair_queue import Share

_MINUTE_S = 60.0
_BURST_S = 10.0
_MAX_RETRY_AFTER_S = 60

Amount = Annotated[float, Meta(gt=0)] | None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Per tenant, over all its keys; None is no limit of its own.

    Attributes:
        weight: Its part of the running slots where tenants wait for them, relative to other tenants' weights.
        max_concurrent_requests: Open at once, waiting ones included.
        max_tokens_per_minute: Prompt and output tokens.
        max_media_bytes_per_minute: Encoded bytes of its media.
        max_visual_tokens_per_minute: Of the prompt tokens, those of its media.
    """

    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    max_concurrent_requests: Annotated[int, Meta(ge=1)] | None = None
    max_requests_per_minute: Amount = None
    max_tokens_per_minute: Amount = None
    max_media_bytes_per_minute: Amount = None
    max_visual_tokens_per_minute: Amount = None

    def over(self, defaults: "Limits") -> "Limits":
        """These, and the defaults for what is not set here. The weight is its own."""
        own = msgspec.structs.asdict(self)
        return Limits(**{name: getattr(defaults, name) if value is None else value for name, value in own.items()})


UNLIMITED = Limits()


class Budget:
    """So much a minute, filled steadily up to ten seconds' worth: a longer burst would be a queue for others.

    What something costs is often known only after it: the level may become negative, and nothing more is allowed
    until it has filled up again.
    """

    __slots__ = ("_at_s", "_level", "_most", "_per_minute", "name")

    def __init__(self, name: str, per_minute: float, now_s: float) -> None:
        self.name = name
        self._per_minute = per_minute
        self._most = max(1.0, per_minute * _BURST_S / _MINUTE_S)
        self._level = self._most
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until one more is allowed; 0 for now."""
        self._fill(now_s)
        return max(0.0, (1.0 - self._level) * _MINUTE_S / self._per_minute)

    def take(self, amount: float, now_s: float) -> None:
        """Use so much, whether it is there or not."""
        self._fill(now_s)
        self._level -= amount

    def _fill(self, now_s: float) -> None:
        gained = (now_s - self._at_s) * self._per_minute / _MINUTE_S
        self._level = min(self._most, self._level + gained)
        self._at_s = now_s


class Meter:
    """What one tenant has used, and whether it may use more. Belongs to one event loop.

    Attributes:
        share: Its part of admission.
        num_refused: Requests, by the limit that refused them.
    """

    def __init__(self, name: str, limits: Limits, now_s: float) -> None:
        self.name = name
        self.share = Share(name)
        self.num_requests = 0
        self.num_tokens = 0
        self.num_visual_tokens = 0
        self.num_media_bytes = 0
        self.num_refused: dict[str, int] = {}
        self._budgets: dict[str, Budget] = {}
        self.limit(limits, now_s)

    def limit(self, limits: Limits, now_s: float) -> None:
        """Have these limits from now on. What was used of a limit that stays as it is stays used."""
        old = getattr(self, "limits", UNLIMITED)
        self.limits = limits
        self.share.weight = limits.weight
        for name in ("requests", "tokens", "media_bytes", "visual_tokens"):
            field = f"max_{name}_per_minute"
            per_minute = getattr(limits, field)
            if per_minute is None:
                self._budgets.pop(name, None)
            elif name not in self._budgets or per_minute != getattr(old, field):
                self._budgets[name] = Budget(field, per_minute, now_s)

    def admit(self, now_s: float) -> None:
        """Count a request that asks to come in. Raises `RateLimitedError`."""
        most = self.limits.max_concurrent_requests
        if most is not None and self.share.num_open >= most:
            self._refuse("max_concurrent_requests", f"{self.share.num_open} requests of this tenant are open", 1)
        for budget in self._budgets.values():
            wait_s = budget.wait_s(now_s)
            if wait_s > 0:
                self._refuse(budget.name, "This tenant has used what it may use for now", wait_s)
        self.num_requests += 1
        if requests := self._budgets.get("requests"):
            requests.take(1, now_s)

    def use(self, now_s: float, *, tokens: int = 0, visual_tokens: int = 0, media_bytes: int = 0) -> None:
        """Count what a request has used."""
        self.num_tokens += tokens
        self.num_visual_tokens += visual_tokens
        self.num_media_bytes += media_bytes
        if self._budgets:
            used = {"tokens": tokens, "visual_tokens": visual_tokens, "media_bytes": media_bytes}
            for name, amount in used.items():
                if amount and name in self._budgets:
                    self._budgets[name].take(amount, now_s)

    def _refuse(self, limit: str, message: str, wait_s: float) -> None:
        self.num_refused[limit] = self.num_refused.get(limit, 0) + 1
        raise RateLimitedError(
            f"{message} ({limit} = {getattr(self.limits, limit):g})",
            retry_after_s=min(_MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s))),
            hint="Retry after the time in Retry-After, or ask the operator for a higher limit",
        )
