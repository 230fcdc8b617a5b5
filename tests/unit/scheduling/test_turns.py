import random

import pytest

from chiasm.scheduling.scheduler import Scheduler, Sequence
from chiasm.scheduling.turns import MAX_STEPS, Demand, Turn, Turns


def turns(demands: list[Demand], *, has_pictures: bool = True) -> str:
    chosen = Turns()
    return "".join(chosen.next(demand, has_pictures=has_pictures).name[0] for demand in demands)


def test_without_pictures_there_are_only_steps():
    assert turns([Demand.TEXT, Demand.USUAL, Demand.AHEAD, Demand.NOTHING], has_pictures=False) == "SSSR"


@pytest.mark.parametrize("demand", [Demand.TEXT, Demand.USUAL])
def test_steps_go_before_batches_within_a_bound(demand):
    assert turns([demand] * 10) == "SSSSESSSSE"


@pytest.mark.parametrize("num_taken", range(MAX_STEPS))
def test_several_steps_may_be_taken_at_once_with_the_same_result(num_taken):
    chosen = Turns()
    assert chosen.next(Demand.USUAL, has_pictures=True) is Turn.STEP
    assert chosen.num_more(Demand.USUAL) == MAX_STEPS - 1
    chosen.took_more(Demand.USUAL, num_taken)
    left = [chosen.next(Demand.USUAL, has_pictures=True) for _ in range(MAX_STEPS - num_taken)]
    assert left == [Turn.STEP] * (MAX_STEPS - 1 - num_taken) + [Turn.ENCODE]


def test_only_a_text_interrupts_a_batch():
    assert [demand for demand in Demand if Turns.may_interrupt(demand)] == [Demand.TEXT]


def test_a_batch_has_its_share_of_the_time_before_it_pauses_again():
    turns = Turns()
    assert not turns.owes_batch(0.0)
    turns.interrupted(10.0, 10.004)
    assert turns.owes_batch(10.0059)
    assert not turns.owes_batch(10.0061)


def test_a_batch_takes_three_times_as_long_as_alone_at_most_however_many_texts_come():
    engine = VirtualEngine(num_layers=100)
    engine.picture_prompt()
    engine.on_layer = lambda: engine.text(200)
    for _ in range(MAX_STEPS + 1):
        engine.turn()
    longest_step_s = engine.STEP_S + 256 * engine.TOKEN_S
    assert 1.5 * engine.PICTURE_S < engine.encoded_after_s[0] <= 3 * engine.PICTURE_S + longest_step_s


def test_nothing_is_computed_ahead_while_a_picture_waits():
    assert turns([Demand.AHEAD, Demand.NOTHING, Demand.AHEAD]) == "EEE"


class VirtualEngine:
    """The scheduler's decisions on a thread whose work takes given times. No clock but its own."""

    PICTURE_S, TOKEN_S, STEP_S = 0.03, 0.0001, 0.001

    def __init__(self, num_layers: int = 1, most_tokens: int | None = None) -> None:
        self._num_layers = num_layers
        self._most_tokens = most_tokens
        self.now_s = 0.0
        self.scheduler = Scheduler(num_slots=16, max_step_tokens=256, max_waiting=1000)
        self.pictures: list[tuple[float, Sequence | None]] = []
        self.arrived_s: dict[Sequence, float] = {}
        self.first_s: dict[Sequence, float] = {}
        self.encoded_after_s: list[float] = []
        self._turns = Turns()
        self._num_keys = 0

    def text(self, num_tokens: int = 40) -> Sequence:
        return self._add(Sequence(self._key(), num_tokens))

    def picture_prompt(self) -> None:
        """A picture to encode whose prompt comes when it is encoded."""
        sequence = Sequence(self._key(), 100, has_media=True)
        self.arrived_s[sequence] = self.now_s
        self.pictures.append((self.now_s, sequence))

    def turn(self) -> None:
        turn = self._turns.next(self.scheduler.demand, has_pictures=bool(self.pictures))
        if turn is Turn.ENCODE:
            arrived_s, sequence = self.pictures.pop(0)
            for layer in range(self._num_layers):
                if layer and self._turns.may_interrupt(self.scheduler.demand):
                    self._interrupt()
                self.now_s += self.PICTURE_S / self._num_layers
                self.on_layer()
            self.encoded_after_s.append(self.now_s - arrived_s)
            self.scheduler.add(sequence)
        elif turn is Turn.STEP:
            self._step()
        else:
            self.now_s += 0.001

    def _step(self) -> None:
        step = self.scheduler.plan(lambda sequence, slot: 0, self._most_tokens)
        self.now_s += self.STEP_S + self.TOKEN_S * sum(chunk.num_tokens for chunk in step.chunks)
        for sequence, _ in self.scheduler.complete(step):
            self.first_s[sequence] = self.now_s - self.arrived_s[sequence]
            self.scheduler.end(sequence)

    def _interrupt(self) -> None:
        if not self._turns.owes_batch(self.now_s):
            start_s = self.now_s
            self._step()
            self._turns.interrupted(start_s, self.now_s)

    def on_layer(self) -> None:
        """What happens while a layer is computed."""

    def _key(self) -> int:
        self._num_keys += 1
        return self._num_keys

    def _add(self, sequence: Sequence) -> Sequence:
        self.arrived_s[sequence] = self.now_s
        self.scheduler.add(sequence)
        return sequence


@pytest.mark.parametrize("seed", range(5))
def test_a_text_waits_for_the_batch_under_way_and_its_own_kind_whatever_pictures_wait(seed):
    rng, engine = random.Random(seed), VirtualEngine()
    for _ in range(100):
        engine.picture_prompt()
    texts = []
    for _ in range(40):
        for _ in range(rng.randint(4, 8)):
            engine.turn()
        engine.now_s += rng.random() * 1e-3
        texts.append(engine.text())
        engine.arrived_s[texts[-1]] -= rng.random() * engine.PICTURE_S  # it came while a batch was under way
        while texts[-1] not in engine.first_s:
            engine.turn()
    own_s = engine.STEP_S + 40 * engine.TOKEN_S
    mates_s = engine.STEP_S + 256 * engine.TOKEN_S  # pictures' prompts fill the same step
    assert max(engine.first_s[text] for text in texts) <= engine.PICTURE_S + own_s + mates_s


@pytest.mark.parametrize("seed", range(5))
def test_a_text_waits_for_one_layer_of_a_batch_that_can_pause(seed):
    rng, engine = random.Random(seed), VirtualEngine(num_layers=10, most_tokens=32)
    for _ in range(100):
        engine.picture_prompt()
    texts, layer_s = [], engine.PICTURE_S / 10

    def on_layer():
        if all(text in engine.first_s for text in texts) and rng.random() < 0.1:
            texts.append(engine.text())
            engine.arrived_s[texts[-1]] -= rng.random() * layer_s

    engine.on_layer = on_layer
    while engine.pictures:
        engine.turn()
    own_s = engine.STEP_S + 40 * engine.TOKEN_S
    mates_s = 32 * engine.TOKEN_S  # a picture's prompt has its turn once in a while
    longest = sorted(engine.first_s[text] for text in texts if text in engine.first_s)
    assert len(longest) > 50
    assert longest[len(longest) // 2] <= layer_s + own_s
    assert longest[-1] <= layer_s + own_s + mates_s


def test_pictures_go_on_however_many_texts_come():
    engine = VirtualEngine()
    for _ in range(10):
        engine.picture_prompt()
    while engine.pictures:
        while engine.scheduler.num_waiting < 3:
            engine.text(200)
        engine.turn()
    longest_step_s = engine.STEP_S + 256 * engine.TOKEN_S
    bound_s = (engine.PICTURE_S + MAX_STEPS * longest_step_s) * 10
    assert max(engine.encoded_after_s) <= bound_s
