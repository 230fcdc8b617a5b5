import json
import math

import msgspec
import pytest

from benchmarks import simulator_grid as grid
from benchmarks.simulator_grid_calibration import SINGLE, combined
from chiasm.advisor.profile.interference import Seen
from chiasm.advisor.profile.runs import Profile
from chiasm.bench.grid.cells import Cell, Kind
from chiasm.bench.grid.journal import Answer, Begin, Run
from chiasm.bench.grid.spec import GridSpec, Topology
from chiasm.simulator.calibration import Calibration, Cost, Interference, Sharing
from chiasm.simulator.fleets import fleet_named

COSTS = Calibration(
    media=Cost(fixed_s=0.02),
    transfer=Cost(fixed_s=0.03),
    encode=Cost(fixed_s=0.03),
    prefill=Cost(fixed_s=0.01, per_unit_s=1e-4),
    step=Cost(fixed_s=0.005, per_unit_s=1e-3),
)
SPEC = GridSpec(topologies=(Topology(name="agg", url="x"), Topology(name="e-pd", url="y")), rates=(4.0,))
FLEETS = {name: fleet_named(grid.FLEETS[name]) for name in ("agg", "e-pd")}
CELLS = [Cell(kind=Kind(images=2, tokens=64, output=output), load=load) for output in (4, 32) for load in (0.3, 0.9)]


def planned(cell, topology, seed):
    answers = tuple(Answer(0.25 * n + 0.01 * seed, 1.0, 1.0, 1.0, "finished") for n in range(40))
    return Run(
        cell=cell,
        seed=seed,
        topology=topology,
        rate_per_s=4.0,
        verdict="valid",
        problems=(),
        lag_p99_ms=0.0,
        used={},
        answers=answers,
    )


def measured_by(costs):
    """Runs whose answers are those of a simulation."""
    for cell in CELLS:
        for name, fleet in FLEETS.items():
            for seed in range(3):
                run = planned(cell, name, seed)
                record = grid._simulated(fleet, run, SPEC, costs)
                order = record.at_s.argsort()
                rows = zip(run.answers, record.ttft_s[order], record.e2el_s[order], record.tpot_s[order], strict=True)
                answers = tuple(
                    Answer(one.at_s, float(first), float(end), float(later), "finished")
                    for one, first, end, later in rows
                )
                yield msgspec.structs.replace(run, answers=answers)


def verdict(costs):
    cells = list(grid.compared(SPEC, list(measured_by(costs)), FLEETS, dict.fromkeys(FLEETS, COSTS)))
    return grid.judged(cells, json.loads(grid.TOLERANCES.read_bytes()))


def test_a_grid_that_is_as_predicted_keeps_all_tolerances():
    found = verdict(COSTS)
    assert all(found[name]["mean_error"] == pytest.approx(0.0, abs=1e-9) for name in grid.FIGURES)
    assert found["best_topology"]["kept"]
    assert found["best_topology"]["most_regret"] == 0.0


def test_a_grid_that_is_not_says_which_are_broken():
    slower = msgspec.structs.replace(COSTS, media=Cost(fixed_s=0.08))
    found = verdict(slower)
    assert not found["mean_ttft"]["kept"]
    assert found["mean_ttft"]["cells_within"] == 0.0


def test_noise_is_told_from_how_a_cells_runs_differ():
    runs = [one for one in measured_by(COSTS) if one.topology == "agg" and one.cell == CELLS[0]]
    assert all(error == pytest.approx(0.0, abs=1e-9) for error in noise_of(runs).values())
    slow = tuple(msgspec.structs.replace(one, ttft_s=1.3 * one.ttft_s) for one in runs[0].answers)
    found = noise_of([msgspec.structs.replace(runs[0], answers=slow), *runs[1:]])
    assert found["mean_ttft"] == pytest.approx(abs(1 / 1.3 - 1) / 3)
    assert found["mean_tpot"] == pytest.approx(0.0, abs=1e-9)
    assert noise_of(runs[:1]) == {}


def noise_of(runs):
    return grid.noise(FLEETS["agg"], runs, SPEC, COSTS)


def test_a_topology_that_did_not_keep_up_is_not_judged():
    run = msgspec.structs.replace(planned(CELLS[0], "agg", 0), verdict="unstable")
    assert grid.measured([run]) is None


def test_noise_is_shown_beside_the_verdict_and_not_taken_off_it():
    cell = {"load": 0.5, "best": {}, "errors": {"agg": {"mean_tpot": 0.13}}, "noise": {"agg": {"mean_tpot": 0.12}}}
    found = grid.judged([cell], json.loads(grid.TOLERANCES.read_bytes()))["mean_tpot"]
    assert not found["kept"]
    assert found["mean_error"] == 0.13
    assert found["of_noise_alone"] == pytest.approx(0.12 * (2 / math.pi) ** 0.5)
    assert found["beyond_noise"] == pytest.approx(0.05)


def test_where_there_is_nothing_to_judge_no_verdict_is_given():
    found = grid.judged([], json.loads(grid.TOLERANCES.read_bytes()))
    assert [found[name]["kept"] for name in (*grid.FIGURES, "best_topology")] == [None] * (len(grid.FIGURES) + 1)
    json.dumps(found, allow_nan=False)


def test_the_journal_of_a_grid_is_read(tmp_path):
    path = tmp_path / "runs.jsonl"
    whole = [planned(CELLS[0], name, 0) for name in SPEC.names]
    lines = [Begin(grid=SPEC), *whole, planned(CELLS[0], "agg", 1)]  # cut off before the other's
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    spec, runs = grid.read_runs(path)
    assert (spec.names, runs) == (("agg", "e-pd"), whole)


def test_cells_that_were_seen_before_the_model_changed_are_judged_apart():
    spec = msgspec.structs.replace(SPEC, title="Topologies on two workers")
    cells = [{"cell": "text, output 16, load 0.3"}, {"cell": "text, output 2048, load 0.3"}]
    assert grid.split(spec, cells) == {"seen": cells[:1], "unseen": cells[1:]}
    assert grid.split(SPEC, cells) == {"seen": [], "unseen": cells}, "of another grid nothing was seen"


def test_what_only_several_workers_have_comes_from_their_profiles():
    def profile(**costs):
        return Profile(calibration=Calibration(**costs), fits={}, beside=Seen(rounds={}))

    single, pair = Sharing(num_cores=2, encode=1.5), Sharing(num_cores=2, contention=0.25)
    found = combined(
        {
            "agg": profile(sharing=pair, step=Cost(fixed_s=9.0)),
            "e-pd": profile(transfer=Cost(fixed_s=0.003), step=Cost(fixed_s=9.0)),
            SINGLE: profile(sharing=single, step=Cost(fixed_s=0.001)),
        }
    )
    assert found.step.fixed_s == 0.001
    assert found.transfer.fixed_s == 0.003
    assert (found.sharing.encode, found.sharing.contention) == (1.5, 0.25)


def test_what_sharing_cores_explains_of_steps_beside_an_encoder_is_not_counted_twice():
    sharing = Sharing(num_cores=2, step_cpu=Cost(fixed_s=0.0013))
    costs = Calibration(step=Cost(fixed_s=0.001), sharing=sharing, interference=Interference(step_by_encode=0.5))
    one = Profile(calibration=costs, fits={}, beside=Seen(rounds={}))
    found = combined({"e-pd": one, SINGLE: one})
    assert found.sharing.step_by_encode == pytest.approx(1.5 / (2.3 / 2) - 1)
