"""What the run that replaces everything counts as a failure."""

from benchmarks import rolling
from benchmarks.chaos import Fleet
from chiasm.faults.client import FINISHED, NO_ANSWER, Answer
from chiasm.faults.questions import Question


class Clients:
    """One client, whose answers are scripted; it ends the run with the last."""

    def __init__(self, run, *answers):
        self._run, self._answers = run, list(answers)

    async def ask(self, question):
        if len(self._answers) == 1:
            self._run._stop.set()
        return self._answers.pop(0)


async def test_all_but_the_right_answer_is_a_failure_and_each_is_counted_to_its_step(monkeypatch):
    monkeypatch.setattr(rolling, "_PAUSE_S", 0.0)
    monkeypatch.setattr(rolling, "_ANSWERS_BETWEEN", 0)
    run = rolling.Rolling(Fleet({}, [], None, None), [Question("what")], [["a", "b"]], 0)
    right = Answer(FINISHED, 200, ["a", "b"])
    wrong = (Answer(FINISHED, 200, ["a"]), Answer(NO_ANSWER, 0, []), Answer("engine_dead", 200, ["a", "b"]))

    async def act():
        await run._client([Clients(run, right, *wrong, right)])

    await run._step("worker encode-0", act)
    found = rolling.result_of(run)
    assert (found["requests"], found["failed"]) == (5, 3)
    assert found["outcomes"] == {"another answer": 1, NO_ANSWER: 1, "engine_dead": 1}
    assert [(one["what"], one["answers"], one["failures"]) for one in found["steps"]] == [("worker encode-0", 5, 3)]
