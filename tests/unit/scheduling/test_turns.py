import random

import pytest

from chiasm.scheduling.scheduler import Scheduler, Sequence
from chiasm.scheduling.turns import MAX_TEXT_TURNS, Demand, Turn, Turns


def turns(demands: list[Demand], *, has_pictures: bool = True) -> str:
    chosen = Turns()
    return "".join(chosen.next(demand, has_pictures=has_pictures).name[0] for demand in demands)


def test_without_pictures_there_are_only_steps():
    assert turns([Demand.TEXT, Demand.USUAL, Demand.AHEAD, Demand.NOTHING], has_pictures=False) == "SSSR"


def test_batches_and_usual_steps_alternate():
    assert turns([Demand.USUAL] * 5) == "SESES"


def test_texts_go_before_pictures_within_a_bound():
    assert turns([Demand.TEXT] * 10) == "SSSSESSSSE"


def test_nothing_is_computed_ahead_while_a_picture_waits():
    assert turns([Demand.AHEAD, Demand.NOTHING, Demand.AHEAD]) == "EEE"


class VirtualEngine:
    """The scheduler's decisions on a thread whose work takes given times. No clock but its own."""

    PICTURE_S, TOKEN_S, STEP_S = 0.03, 0.0001, 0.001

    def __init__(self) -> None:
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
            self.now_s += self.PICTURE_S
            self.encoded_after_s.append(self.now_s - arrived_s)
            self.scheduler.add(sequence)
        elif turn is Turn.STEP:
            step = self.scheduler.plan(lambda sequence, slot: 0)
            self.now_s += self.STEP_S + self.TOKEN_S * sum(chunk.num_tokens for chunk in step.chunks)
            for sequence, _ in self.scheduler.complete(step):
                self.first_s[sequence] = self.now_s - self.arrived_s[sequence]
                self.scheduler.end(sequence)
        else:
            self.now_s += 0.001

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


def test_pictures_go_on_however_many_texts_come():
    engine = VirtualEngine()
    for _ in range(10):
        engine.picture_prompt()
    while engine.pictures:
        while engine.scheduler.num_waiting < 3:
            engine.text(200)
        engine.turn()
    longest_step_s = engine.STEP_S + 256 * engine.TOKEN_S
    bound_s = (engine.PICTURE_S + MAX_TEXT_TURNS * longest_step_s) * 10
    assert max(engine.encoded_after_s) <= bound_s
