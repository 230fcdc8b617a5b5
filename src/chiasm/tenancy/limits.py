"""What a tenant may use, and what it has used."""

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import RateLimitedError
from chiasm.sharing.base import PermitAsk, RateAsk
from chiasm.tenancy.budget import Budget
from chiasm.tenancy.fair_queue import Share

_MAX_RETRY_AFTER_S = 60
_QUIET_S = 0.1
_LONGEST_QUIET_S = 1.0

Amount = Annotated[float, Meta(gt=0, le=1e15)] | None  # not infinite: None is no limit


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


class Meter:
    """What one tenant has used, and whether it may use more. Belongs to one event loop.

    Attributes:
        share: Its part of admission.
        num_refused: Requests, by the limit that refused them.
        num_asking: Requests that wait for the store's answer about this tenant.
    """

    def __init__(self, name: str, limits: Limits, now_s: float) -> None:
        self.name = name
        self.share = Share(name)
        self.num_requests = 0
        self.num_tokens = 0
        self.num_visual_tokens = 0
        self.num_media_bytes = 0
        self.num_refused: dict[str, int] = {}
        self.num_asking = 0
        self._budgets: dict[str, Budget] = {}
        self._part: float | None = 1.0  # of the limits, that this gateway counts alone; None: what the store gives
        self._num_permits = 0
        self._quiet_until_s = 0.0
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
        self._apply_part(now_s)

    def lease(self, now_s: float) -> None:
        """Allow what the store gives, from now on."""
        self._part, self._num_permits, self._quiet_until_s = None, 0, 0.0
        self._apply_part(now_s)

    def keep_part(self, part: float, now_s: float) -> None:
        """Allow a part of the limits without asking anybody, from now on."""
        self._part = part
        self._apply_part(now_s)

    def is_short(self, now_s: float) -> bool:
        """Whether the store may have more, where nothing is left of what it gave."""
        if self._part is not None or now_s < self._quiet_until_s:
            return False
        most = self._most_open()
        is_full = most is not None and self.share.num_open >= most
        return is_full or any(budget.wait_s(now_s) > 0 for budget in self._budgets.values())

    def permit_ask(self, num_gateways: int) -> PermitAsk | None:
        """How many requests this gateway wants to have open; None where that is not limited. `permit` follows."""
        most, using = self.limits.max_concurrent_requests, self.share.num_open
        if most is None or not (using or self._num_permits or self.num_asking):
            return None
        spare = min(using // 4 + 1, most // (4 * num_gateways)) if using else 0  # of a small limit, none lies idle
        wanted = using + self.num_asking + spare
        self._num_permits = min(
            self._num_permits, wanted
        )  # others may have what is given back before the answer is here
        return PermitAsk(key=self.name, most=most, using=using, wanted=wanted)

    def permit(self, ask: PermitAsk, num_permits: int, now_s: float) -> None:
        """Take the store's answer."""
        self._num_permits = num_permits
        if num_permits < ask.using + self.num_asking:
            self._quiet_until_s = now_s + _QUIET_S

    def rate_asks(self, num_gateways: int) -> list[tuple[Budget, RateAsk]]:
        """What to ask the store about rates; see `Budget.ask`."""
        asks = [
            (budget, budget.ask(f"{self.name}:{name}", num_gateways, self.num_asking))
            for name, budget in self._budgets.items()
        ]
        return [(budget, ask) for budget, ask in asks if ask is not None]

    def note_pace(self, elapsed_s: float) -> None:
        """See `Budget.note_pace`."""
        for budget in self._budgets.values():
            budget.note_pace(elapsed_s)

    def be_quiet(self, wait_s: float, now_s: float) -> None:
        """The store has nothing for so long: refuse without asking it again."""
        self._quiet_until_s = now_s + min(max(wait_s, _QUIET_S), _LONGEST_QUIET_S)

    def admit(self, now_s: float) -> None:
        """Count a request that asks to come in. Raises `RateLimitedError`."""
        most = self._most_open()
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

    def _most_open(self) -> int | None:
        """How many of its requests may be open at this gateway."""
        most = self.limits.max_concurrent_requests
        if most is None:
            return None
        return min(most, self._num_permits) if self._part is None else max(1, int(most * self._part))

    def _apply_part(self, now_s: float) -> None:
        for budget in self._budgets.values():
            if self._part is None:
                budget.lease(now_s)
            else:
                budget.keep_part(self._part, now_s)

    def _refuse(self, limit: str, message: str, wait_s: float) -> None:
        self.num_refused[limit] = self.num_refused.get(limit, 0) + 1
        raise RateLimitedError(
            f"{message} ({limit} = {getattr(self.limits, limit):g})",
            retry_after_s=min(_MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s))),
            hint="Retry after the time in Retry-After, or ask the operator for a higher limit",
        )
