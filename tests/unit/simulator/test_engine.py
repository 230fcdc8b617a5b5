import msgspec
import pytest

from chiasm.simulator.calibration import Calibration, Cost, Interference
from chiasm.simulator.clock import VirtualTime
from chiasm.simulator.device import Busy, Company, Device
from chiasm.simulator.engine import Engine
from chiasm.simulator.generation import Generation
from chiasm.simulator.host import OwnCores

COSTS = Calibration(
    prefill=Cost(fixed_s=0.010, per_unit_s=0.001),
    step=Cost(fixed_s=0.004, per_unit_s=0.001),
    context_s=0.0,
    encode=Cost(fixed_s=0.020, per_unit_s=0.001),
    max_running=4,
    max_step_tokens=100,
)


class Bench:
    """One engine, and when the events of its generations came."""

    def __init__(self, calibration=COSTS, *, is_apart=False, kv_tokens=0, company=None):
        self.env = VirtualTime()
        self.device = Device(calibration.interference or Interference(), company=company or Company())
        self.engine = Engine(
            self.env, calibration, self.device, Busy(), OwnCores(self.env), is_apart=is_apart, kv_tokens=kv_tokens
        )
        self.times = {}

    def note(self, name, event):
        event.callbacks.append(lambda _: self.times.__setitem__(name, self.env.now))

    def generate(self, name, at_s, num_prompt, num_output, num_known=0):
        def later():
            yield self.env.timeout(at_s)
            generation = Generation(self.env, num_prompt, num_output, num_known)
            self.note(f"{name}.first", generation.first)
            self.note(f"{name}.done", generation.done)
            self.engine.submit(generation)

        self.env.process(later())

    def encode(self, name, at_s, num_tokens):
        def later():
            yield self.env.timeout(at_s)
            self.encode_now(name, name, num_tokens)

        self.env.process(later())

    def encode_now(self, name, owner, num_tokens):
        self.engine.encode(owner, num_tokens, lambda: self.times.__setitem__(name, self.env.now))

    def run(self):
        self.env.run()
        return self.times


def test_one_generation_is_its_prompt_and_its_steps():
    bench = Bench()
    bench.generate("a", 0.0, 50, 5)
    assert bench.run() == pytest.approx({"a.first": 0.060, "a.done": 0.060 + 4 * 0.005})


def test_one_token_needs_no_step():
    bench = Bench()
    bench.generate("a", 0.0, 50, 1)
    assert bench.run() == pytest.approx({"a.first": 0.060, "a.done": 0.060})


def test_known_tokens_cost_nothing_but_the_last_is_always_computed():
    bench = Bench()
    bench.generate("a", 0.0, 50, 1, num_known=40)
    bench.generate("b", 1.0, 50, 1, num_known=50)
    times = bench.run()
    assert times["a.first"] == pytest.approx(0.020)
    assert times["b.first"] == pytest.approx(1.011)


def test_a_newcomer_waits_for_the_step_that_has_begun_and_slows_the_others_down():
    bench = Bench()
    bench.generate("a", 0.0, 50, 101)  # first at 0.060, then steps of 5 ms
    bench.generate("b", 0.072, 20, 2)  # in the third step, which ends at 0.075
    times = bench.run()
    assert times["b.first"] == pytest.approx(0.075 + 0.030 + 0.005)  # its prompt beside a's step
    assert times["b.done"] == pytest.approx(times["b.first"] + 0.006)  # one step of two
    assert times["a.done"] == pytest.approx(times["b.done"] + (100 - 3 - 1 - 1) * 0.005)


def test_long_prompts_go_in_chunks():
    bench = Bench()
    bench.generate("a", 0.0, 250, 1)
    assert bench.run()["a.first"] == pytest.approx(3 * 0.010 + 250 * 0.001)


def test_steps_grow_with_the_context_as_if_taken_one_by_one():
    costs = Calibration(prefill=Cost(fixed_s=0.01), step=Cost(fixed_s=0.004), context_s=0.0001)
    whole, cut = Bench(costs), Bench(costs)
    whole.generate("a", 0.0, 10, 21)
    cut.generate("a", 0.0, 10, 21)
    cut.encode("p", 0.03, 1)  # something comes in the middle: steps are taken in two goes, and no time is lost
    expected_s = 0.01 + sum(0.004 + 0.0001 * (10 + step) for step in range(20))
    assert whole.run()["a.done"] == pytest.approx(expected_s)
    assert cut.run()["a.done"] == pytest.approx(expected_s)


def test_slots_are_bounded():
    bench = Bench(Calibration(prefill=Cost(fixed_s=0.01), step=Cost(fixed_s=0.005), max_running=1))
    bench.generate("a", 0.0, 10, 3)
    bench.generate("b", 0.0, 10, 3)
    times = bench.run()
    assert times["b.first"] == pytest.approx(times["a.done"] + 0.01)


def test_contexts_that_do_not_fit_wait_and_one_that_never_would_runs_alone():
    costs = Calibration(prefill=Cost(fixed_s=0.01), step=Cost(fixed_s=0.005))
    bench = Bench(costs, kv_tokens=20)
    bench.generate("a", 0.0, 10, 5)
    bench.generate("b", 0.0, 10, 5)
    bench.generate("huge", 0.0, 100, 5)
    times = bench.run()
    assert times["b.first"] == pytest.approx(times["a.done"] + 0.01)
    assert times["huge.first"] == pytest.approx(times["b.done"] + 0.01)


@pytest.mark.parametrize("is_apart", [True, False])
def test_pictures_go_in_batches_up_to_the_budget(is_apart):
    costs = Calibration(encode=Cost(fixed_s=0.02, per_unit_s=0.001), max_encode_tokens=100, max_encode_s=1.0)
    bench = Bench(costs, is_apart=is_apart)
    bench.encode("first", 0.0, 40)  # nothing is known of its cost
    for name in "abc":
        bench.encode(name, 0.0, 40)
    bench.encode("large", 0.0, 400)
    times = bench.run()
    assert times["first"] == pytest.approx(0.02 + 0.04)
    assert times["a"] == times["b"] == pytest.approx(0.06 + 0.02 + 0.08)
    assert times["c"] == pytest.approx(0.16 + 0.06)
    assert times["large"] == pytest.approx(0.22 + 0.42)


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_batch_takes_no_longer_than_engines_let_it(is_apart):
    """Else every step would wait for all the pictures that are there."""
    bench = Bench(Calibration(encode=Cost(per_unit_s=0.001), max_encode_s=0.1), is_apart=is_apart)
    for name in ("a", "b", "c", "d"):
        bench.encode(name, 0.0, 50)
    times = bench.run()
    assert times["a"] == pytest.approx(0.05)
    assert times["b"] == times["c"] == pytest.approx(0.15)
    assert times["d"] == pytest.approx(0.20)


def test_one_picture_does_not_wait_for_all_of_another_request():
    bench = Bench(Calibration(encode=Cost(fixed_s=0.02), max_encode_tokens=1), is_apart=True)
    for number in range(4):
        bench.env.process(_note_later(bench, "large", f"large {number}"))
    bench.env.process(_note_later(bench, "small", "small"))
    times = bench.run()
    assert times["small"] == pytest.approx(0.02)
    assert max(times.values()) == pytest.approx(0.10)


def _note_later(bench, owner, name):
    yield bench.env.timeout(0.0)
    bench.encode_now(name, owner, 64)


@pytest.mark.parametrize(("parts", "expected_s"), [(1, 0.040 + 0.060), (10, 0.012 + 0.060)])
def test_a_text_waits_for_a_part_of_a_batch(parts, expected_s):
    costs = msgspec.structs.replace(COSTS, encode=Cost(fixed_s=0.040), encode_parts=parts)
    bench = Bench(costs)
    bench.encode("picture", 0.0, 64)
    bench.generate("text", 0.0101, 50, 1)
    assert bench.run()["text.first"] == pytest.approx(expected_s)
    assert bench.run()["picture"] == pytest.approx(0.040 if parts == 1 else 0.040 + 0.060)


def test_an_encoder_apart_is_as_slow_as_it_is_said_to_be():
    bench = Bench(Calibration(encode=Cost(fixed_s=0.02), encoder_factor=2.5), is_apart=True)
    bench.encode("a", 0.0, 40)
    assert bench.run()["a"] == pytest.approx(0.05)


def test_what_shares_a_device_slows_each_other_down():
    costs = Calibration(
        prefill=Cost(fixed_s=0.010),
        step=Cost(fixed_s=0.010),
        interference=Interference(resident=0.1, step_by_encode=0.2, prefill_by_encoder=0.5, engine_by_media=0.4),
    )
    bench = Bench(costs)
    bench.device.num_residents = 1
    bench.generate("a", 0.0, 10, 2)
    times = bench.run()
    assert times["a.first"] == pytest.approx(0.010 * 1.5 * 1.1)
    assert times["a.done"] - times["a.first"] == pytest.approx(0.010 * 1.1)
    bench.device.count_encoding(1)
    bench.engine.media_changed(1)
    bench.generate("b", 0.0, 10, 2)
    times = bench.run()
    assert times["b.done"] - times["b.first"] == pytest.approx(0.010 * (1 + 0.1 + 0.2 + 0.4))


def _slowed_for_a_while(costs, begin, end):
    """When a generation of 100 steps of 10 ms ends that something slows down from 0.234 s on, until 0.734 s."""
    bench = Bench(costs)
    bench.generate("a", 0.0, 10, 101)  # first at 0.01

    def meanwhile():
        yield bench.env.timeout(0.234)
        begin(bench)
        yield bench.env.timeout(0.5)
        end(bench)

    bench.env.process(meanwhile())
    return bench.run()["a.done"]


@pytest.mark.parametrize(
    ("interference", "count"),
    [
        (Interference(engine_by_media=0.5), lambda bench, by: bench.engine.media_changed(by)),
        (Interference(step_by_encode=0.5), lambda bench, by: bench.device.count_encoding(by)),
    ],
)
def test_steps_taken_together_are_slowed_down_by_what_begins_meanwhile(interference, count):
    costs = Calibration(prefill=Cost(fixed_s=0.010), step=Cost(fixed_s=0.010), interference=interference)
    done_s = _slowed_for_a_while(costs, lambda bench: count(bench, 1), lambda bench: count(bench, -1))
    num_slow = 33  # from 0.24 on, 15 ms each; the last of them begins at 0.72
    assert done_s == pytest.approx(0.01 + (100 - num_slow) * 0.010 + num_slow * 0.015)


def test_an_encoder_slows_steps_on_its_device_down_only_while_it_computes():
    costs = Calibration(
        prefill=Cost(fixed_s=0.010),
        step=Cost(fixed_s=0.010),
        encode=Cost(fixed_s=0.1),
        interference=Interference(step_by_encode=1.0),
    )
    bench = Bench(costs)
    encoder = Engine(bench.env, costs, bench.device, Busy(), OwnCores(bench.env), is_apart=True)
    bench.generate("a", 0.0, 10, 101)

    def later():
        yield bench.env.timeout(0.5)
        encoder.encode("p", 10, lambda: None)

    bench.env.process(later())
    assert bench.run()["a.done"] == pytest.approx(1.01 + 5 * 0.010)  # five steps of 20 ms instead of ten


def test_a_dead_engine_is_told_of_nothing_any_more():
    costs = Calibration(step=Cost(fixed_s=0.01), interference=Interference(step_by_encode=0.5))
    bench = Bench(costs)
    bench.engine.stop(RuntimeError("dead"))
    bench.run()
    bench.device.count_encoding(1)
    assert bench.env.peek() == float("inf")


def test_a_tower_within_steps_has_no_turn_of_its_own():
    costs = msgspec.structs.replace(COSTS, tower_in_step=True)
    bench = Bench(costs)
    bench.generate("a", 0.0, 50, 101)  # first at 0.060, then steps of 5 ms

    def later():
        yield bench.env.timeout(0.072)  # in the third of them, which ends at 0.075
        bench.encode_now("p", "p", 40)
        generation = Generation(bench.env, 20, 1)
        bench.note("p.first", generation.first)
        bench.engine.submit(generation)

    bench.env.process(later())
    times = bench.run()
    assert times["p.first"] == pytest.approx(0.075 + (0.020 + 0.040) + 0.030 + 0.005), "tower, prompt, and a's step"
    assert times["a.done"] == pytest.approx(times["p.first"] + (100 - 3 - 1) * 0.005)


def test_an_encoder_apart_has_no_steps_for_its_tower():
    bench = Bench(msgspec.structs.replace(COSTS, tower_in_step=True), is_apart=True)
    bench.encode("p", 0.0, 40)
    assert bench.run()["p"] == pytest.approx(0.060)


def test_parts_of_a_prompt_together_cost_its_square():
    costs = msgspec.structs.replace(COSTS, prefill=Cost(per_unit_s=0.001), prefill_quadratic_s=1e-6)
    bench = Bench(costs)
    bench.generate("long", 0.0, 250, 1)  # three steps of a hundred tokens at most
    assert bench.run()["long.first"] == pytest.approx(0.250 + 1e-6 * 250**2)
    assert costs.prefill_s(250) == pytest.approx(0.250 + 1e-6 * 250**2)


def test_after_a_prompts_first_token_the_engine_keeps_the_prompt():
    bench = Bench(msgspec.structs.replace(COSTS, after_prompt=Cost(fixed_s=0.002, per_unit_s=1e-4)))
    bench.generate("a", 0.0, 50, 3)
    times = bench.run()
    assert times["a.first"] == pytest.approx(0.010 + 0.050)
    assert times["a.done"] == pytest.approx(0.060 + 0.002 + 0.005 + 2 * 0.005)


def test_running_generations_stand_still_for_each_request_that_comes():
    usual, stalled = (Bench(msgspec.structs.replace(COSTS, stall_s=stall_s)) for stall_s in (0.0, 0.007))
    for bench in (usual, stalled):
        bench.generate("a", 0.0, 10, 50)  # nobody runs when it comes
        bench.generate("b", 0.1, 10, 1)
        bench.generate("c", 0.15, 10, 1)
    before, after = usual.run(), stalled.run()
    assert after["a.first"] == before["a.first"]
    assert after["b.first"] == pytest.approx(before["b.first"] + 0.007)
    assert after["a.done"] == pytest.approx(before["a.done"] + 2 * 0.007)


def test_steps_take_longer_while_another_process_of_the_host_encodes():
    company = Company(0.5)
    bench = Bench(company=company)
    bench.generate("a", 0.0, 10, 101)

    def encode():
        yield bench.env.timeout(0.1225)  # in the middle of a step
        with company:
            yield bench.env.timeout(0.15)

    bench.env.process(encode())
    usual_s = 0.02 + 100 * 0.005
    assert bench.run()["a.done"] == pytest.approx(usual_s + 0.15 / 3, abs=0.005)


def test_pictures_of_a_batch_cost_the_square_of_each():
    costs = msgspec.structs.replace(COSTS, encode_quadratic_s=1e-6, max_encode_s=1.0)
    bench = Bench(costs, is_apart=True)
    for name, num_tokens in (("alone", 50), ("first", 100), ("second", 200)):
        bench.encode(name, 0.0, num_tokens)
    times = bench.run()
    assert times["second"] - times["alone"] == pytest.approx(0.020 + 0.3 + 1e-6 * (100**2 + 200**2))


def test_what_interrupts_steps_does_so_once():
    """Steps that were taken together and cut short leave nothing behind that wakes the engine at their old end."""
    bench, num_begun = Bench(), 0
    compute = bench.engine._cores.work

    def counted(seconds, cores=1.0):
        nonlocal num_begun
        num_begun += 1
        return compute(seconds, cores)

    bench.engine._cores.work = counted
    bench.generate("a", 0.0, 50, 100)
    bench.generate("b", 0.1, 50, 200)
    bench.run()
    assert num_begun == 6  # a's prompt; its steps; the rest of one; b's prompt; steps until a ends; until b ends
