"""The matrix: every scenario in every topology that can meet it, and what is left afterwards."""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AsyncExitStack

import msgspec

from chiasm.errors import InvalidSettingError, UnsupportedModelError
from chiasm.faults.idle import offered_by, what_stays
from chiasm.faults.rig import Rig, Topology, reference, rig, with_fleet
from chiasm.faults.scenarios import clients, embeddings, kills, kv, late, metadata
from chiasm.faults.scenarios.base import SPLIT, Scenario
from chiasm.faults.trial import References, Trials
from chiasm.faults.verdict import Verdict
from chiasm.launch.model import model_directory, preparer_of
from chiasm.settings import Settings

SCENARIOS: tuple[Scenario, ...] = (
    *embeddings.SCENARIOS,
    *late.SCENARIOS,
    *metadata.SCENARIOS,
    *kv.SCENARIOS,
    *clients.SCENARIOS,
    *kills.SCENARIOS,
)
AFTERWARDS = "afterwards"
"""The fault of the verdict on what a fleet still has when all its trials are over."""
IDLE = "idle"
_COUNTS: dict[tuple[str, bool], dict[str, int]] = {
    ("e-pd", False): {"encoders": 2, "prefills": 1},
    ("e-p-d", False): {"encoders": 2, "prefills": 1, "decodes": 1},
    ("auto", False): {"workers": 2},
    ("e-pd", True): {"encoders": 1, "prefills": 2},
    ("e-p-d", True): {"encoders": 1, "prefills": 1, "decodes": 2},
    ("auto", True): {"workers": 2},
}
"""Workers by topology and whether they are processes: two of those that a fault of the group takes away."""

Trial = tuple[Topology, Scenario]
_Fleet = tuple[Topology, bool, str, str]
"""Topology, whether workers are processes, `routing.local_encode` and `routing.overlap`."""
OnTrial = Callable[[str, str], None]
"""Told the fault and the topology before each trial."""


def chosen(faults: Collection[str], topologies: Collection[str]) -> list[Trial]:
    """The trials to make, by topology; none named means all. A group's name stands for its faults.

    Raises:
        InvalidSettingError: No such fault or topology.
    """
    names = [*dict.fromkeys(scenario.group for scenario in SCENARIOS), *(scenario.name for scenario in SCENARIOS)]
    for given, known, what in ((faults, names, "fault"), (topologies, SPLIT, "topology")):
        if strange := sorted(set(given) - set(known)):
            raise InvalidSettingError(f"No such {what}: {', '.join(strange)}", hint=f"Known: {', '.join(known)}")
    return [
        (topology, scenario)
        for topology in SPLIT
        if not topologies or topology in topologies
        for scenario in SCENARIOS
        if topology in scenario.topologies and (not faults or {scenario.name, scenario.group} & set(faults))
    ]


async def run_matrix(trials: Iterable[Trial], settings: Settings, on_trial: OnTrial) -> AsyncIterator[Verdict]:
    """Make the trials, one after the other; for each fleet ends with a verdict on what it still has.

    Raises:
        UnsupportedModelError: The model takes no pictures.
        EngineStartError: A fleet does not come up, or does not come back.
    """
    if preparer_of(model_directory(settings.engine.model)) is None:
        raise UnsupportedModelError("Faults are tried with pictures; this model takes none")
    numbers = itertools.count()
    async with AsyncExitStack() as lasting:
        references = References(await lasting.enter_async_context(reference(settings, _ignore)))
        waiting: list[tuple[str, Rig]] = []
        for fleet, scenarios in _by_fleet(trials):
            topology, in_processes, *_ = fleet
            on_trial("starting workers", topology)
            async with AsyncExitStack() as own:
                opening = rig(_settings_of(fleet, settings), _ignore, in_processes=in_processes)
                started = await (own if in_processes else lasting).enter_async_context(opening)
                made = Trials(started, references, topology, numbers)
                for scenario in scenarios:
                    on_trial(scenario.name, topology)
                    yield await made.run(scenario)
                if in_processes:
                    on_trial(AFTERWARDS, topology)
                    yield await _afterwards(topology, started)
                else:  # small, and what it offers expires while others are tried
                    waiting.append((topology, started))
        for name, started in waiting:
            on_trial(AFTERWARDS, name)
            yield await _afterwards(name, started)


async def _afterwards(topology: str, fleet: Rig) -> Verdict:
    problems = tuple(await what_stays(offered_by, fleet))
    outcome = "something stays" if problems else IDLE
    return Verdict(fault=AFTERWARDS, topology=topology, expected=IDLE, outcome=outcome, problems=problems)


def _fleet_of(trial: Trial) -> _Fleet:
    topology, scenario = trial
    return topology, scenario.needs_processes, scenario.local_encode, scenario.overlap


def _by_fleet(trials: Iterable[Trial]) -> list[tuple[_Fleet, list[Scenario]]]:
    """Trials that one fleet serves, together; those of processes come last, since they take longest."""
    ordered = sorted(trials, key=lambda trial: (trial[1].needs_processes, *map(str, _fleet_of(trial))))
    return [(fleet, [scenario for _, scenario in group]) for fleet, group in itertools.groupby(ordered, key=_fleet_of)]


def _settings_of(fleet: _Fleet, settings: Settings) -> Settings:
    """Workers to be killed move tensors over TCP in one topology: there a producer's death can end a transfer."""
    topology, in_processes, local_encode, overlap = fleet
    made = with_fleet(settings, topology, local_encode=local_encode, overlap=overlap, **_COUNTS[topology, in_processes])
    if in_processes and topology == "e-pd":
        made = msgspec.structs.replace(made, transfer=msgspec.structs.replace(made.transfer, connector="tcp"))
    return made


def _ignore(_what: str, _share: float) -> None:
    """A tiny model loads too fast to be watched."""
