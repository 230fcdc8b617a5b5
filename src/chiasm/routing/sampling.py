"""Which members a request is planned over: all of them, or a sample where there are many.

Looking at thousands of workers for each request would cost more than most requests. A few at random, of which the
least busy is taken, balance nearly as well as all (the power of two choices; Mitzenmacher 1996), and better where
requests share their pictures out over all idle encoders at once: docs/scale.md has simulated numbers.
"""

from collections.abc import Collection, Iterable
from random import Random

from chiasm.routing.fleet import Fleet
from chiasm.routing.member import Member
from chiasm.routing.view import Job

_MAX_HOLDERS = 8
"""Members that have something of a request, looked at besides the sample."""
_TRIES = 4
"""Draws for each member wanted, since some of those drawn may be down."""


class Sampling:
    """Draws members. Belongs to one router; the same seed draws the same ones: each router of a fleet has its own."""

    def __init__(self, max_candidates: int, seed: int = 0) -> None:
        """Draw at most so many of each kind; members of a kind play the same roles."""
        self._max_candidates = max_candidates
        self._random = Random(seed)  # noqa: S311 - which worker serves is no secret
        self._members: tuple[Member, ...] = ()
        self._kinds: list[list[Member]] = []

    def members(self, fleet: Fleet, job: Job) -> Collection[Member]:
        """Those that a plan for a request may name, ready or not; all of a small fleet."""
        if len(fleet.members) <= self._max_candidates:
            return fleet.members
        if fleet.members is not self._members:
            self._members, self._kinds = fleet.members, _by_roles(fleet.members)
        chosen: dict[str, Member] = {}
        for kind in self._kinds:
            self._draw(kind, chosen)
        for name in _holders(job):
            member = fleet.find(name)
            if member is not None:
                chosen.setdefault(name, member)
        return chosen.values()

    def _draw(self, kind: list[Member], chosen: dict[str, Member]) -> None:
        """Add ready members of a kind; all of it where drawing finds none."""
        num_before, num_members = len(chosen), len(kind)
        if num_members > self._max_candidates:
            num_wanted, draw = num_before + self._max_candidates, self._random.random
            for _ in range(_TRIES * self._max_candidates):
                member = kind[int(draw() * num_members)]
                if member.state == "ready":
                    chosen[member.name] = member
                    if len(chosen) == num_wanted:
                        return
        if len(chosen) == num_before:
            chosen.update((one.name, one) for one in kind)


def _by_roles(members: Iterable[Member]) -> list[list[Member]]:
    kinds: dict[frozenset[str], list[Member]] = {}
    for member in members:
        kinds.setdefault(frozenset(member.info.roles), []).append(member)
    return list(kinds.values())


def _holders(job: Job) -> list[str]:
    names = dict.fromkeys(job.known)
    for item in job.items:
        names.update(dict.fromkeys(item.holders))
    return list(names)[:_MAX_HOLDERS]
