"""Trials of scenarios on one fleet, one after the other."""

import itertools
from collections.abc import Mapping

from chiasm.faults.client import Client
from chiasm.faults.idle import held_by, what_stays
from chiasm.faults.judgement import attempts_of, problems_of_neighbour, problems_of_target
from chiasm.faults.meeting import MEETING_TIMEOUT_S, Asked, Meeting
from chiasm.faults.questions import Question, about
from chiasm.faults.rig import START_TIMEOUT_S, Rig, until
from chiasm.faults.scenarios.base import Scenario
from chiasm.faults.verdict import Verdict

_STREAM_TOKENS = 32
_PICTURE_TOKENS = 16
_SHORT_TOKENS = 12


class References:
    """The right tokens, from a worker that nothing happens to."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[Question, list[str]] = {}

    async def asked(self, name: str, question: Question) -> Asked:
        """A request with what it is to be answered with."""
        if question not in self._known:
            self._known[question] = (await self._client.ask(question)).tokens
        return Asked(name, question, self._known[question])


class Trials:
    """Tries scenarios on a fleet. `numbers` are of pictures that it has not seen."""

    def __init__(self, rig: Rig, references: References, topology: str, numbers: "itertools.count[int]") -> None:
        self._rig = rig
        self._references = references
        self._topology = topology
        self._numbers = numbers

    async def run(self, scenario: Scenario) -> Verdict:
        """Try one scenario; returns when the fleet is whole and idle again, or does not get there."""
        target = await self._target(scenario)
        meeting = await self._meeting(scenario, target)
        following = await self._following(target)
        pids = self._rig.pids()
        fault = scenario.make(self._rig.processes)
        problems = []
        try:
            await meeting.run(fault)
        except TimeoutError:
            problems.append(f"not everybody had an answer after {MEETING_TIMEOUT_S:g} s")
        problems += problems_of_target(scenario, fault, target)
        for one in meeting.neighbours:
            problems += problems_of_neighbour(one, self._rig.killed_of(pids))
        problems += await self._deaths(pids)
        following.answer = await self._rig.client.ask(following.question)
        problems += problems_of_neighbour(following, ())
        problems += await what_stays(held_by, self._rig)
        return Verdict(
            fault=scenario.name,
            topology=self._topology,
            expected=scenario.outcome,
            outcome=target.answer.outcome,
            attempts=tuple(f"{one.stage} {one.worker} {one.outcome}" for one in attempts_of(target.receipt)),
            elapsed_ms=round(1e3 * target.answer.elapsed_s, 1),
            problems=tuple(problems),
        )

    async def _target(self, scenario: Scenario) -> Asked:
        fresh = about(self._fresh(scenario.pictures))
        if scenario.shows_slow_url:
            slow = Question(fresh.text, (self._rig.slow_url,), (), scenario.max_tokens, scenario.timeout_s)
            return Asked("the target", slow, [])
        question = Question(fresh.text, fresh.pictures, fresh.identities, scenario.max_tokens, scenario.timeout_s)
        return await self._references.asked("the target", question)

    async def _following(self, target: Asked) -> Asked:
        """What is asked afterwards: the same once more, where that is short."""
        is_again = bool(target.question.identities) and target.question.max_tokens <= _SHORT_TOKENS
        question = target.question if is_again else Question("And what else?", max_tokens=_SHORT_TOKENS)
        return await self._references.asked("the next request", question)

    async def _meeting(self, scenario: Scenario, target: Asked) -> Meeting:
        text = Question("Tell me about it.", max_tokens=_STREAM_TOKENS)
        picture = about(self._fresh(1), max_tokens=_PICTURE_TOKENS)
        sharing = None
        if scenario.shares_picture:
            same = target.question
            other = Question("What shape is it?", same.pictures, same.identities)
            sharing = await self._references.asked("the request that shares the picture", other)
        return Meeting(
            self._rig,
            await self._references.asked("the text request", text),
            await self._references.asked("the other picture's request", picture),
            target,
            sharing,
            is_picture_first=scenario.is_picture_first,
        )

    def _fresh(self, count: int) -> tuple[int, ...]:
        return tuple(itertools.islice(self._numbers, count))

    async def _deaths(self, before: Mapping[str, int]) -> list[str]:
        """Wait until the fleet is whole again. Returns who died without having been killed."""
        rig = self._rig
        await until(lambda: rig.is_whole(before), START_TIMEOUT_S, "all workers are back")
        now = rig.pids()
        killed = rig.killed_of(before)
        return [f"{name} died" for name, pid in before.items() if now[name] != pid and name not in killed]
