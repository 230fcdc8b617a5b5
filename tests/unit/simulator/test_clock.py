import pytest

from chiasm.errors import EngineDeadError
from chiasm.simulator.clock import VirtualTime


def after(env, seconds, result=None):
    yield env.timeout(seconds)
    return result


def test_processes_side_by_side_return_in_their_order():
    env, found = VirtualTime(), []

    def all_of_them():
        results = yield env.together([after(env, 3.0, "a"), after(env, 1.0, "b"), after(env, 2.0, "c")])
        found.append((env.now, results))

    env.begin(all_of_them())
    env.run()
    assert found == [(3.0, ["a", "b", "c"])]


def test_processes_that_need_not_wait_are_over_at_once():
    env, found = VirtualTime(), []

    def nothing():
        return "done"
        yield

    def all_of_them():
        found.append((yield env.together([nothing(), nothing()])))

    env.begin(all_of_them())
    env.run()
    assert found == [["done", "done"]]


def test_an_event_that_has_happened_is_not_waited_for():
    env, times = VirtualTime(), []
    early = env.timeout(1.0, "early")

    def late():
        yield env.timeout(2.0)
        times.append((env.now, (yield early)))

    env.begin(late())
    env.run()
    assert times == [(2.0, "early")]


def test_all_who_wait_for_what_fails_see_its_error():
    env, seen = VirtualTime(), []
    event = env.event()

    def wait():
        try:
            yield event
        except EngineDeadError as error:
            seen.append(error.message)

    for _ in range(3):
        env.begin(wait())
    event.fail(EngineDeadError("it died"))
    env.run()
    assert seen == ["it died"] * 3


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_process_raises_ends_the_simulation(at_once):
    env = VirtualTime()

    def fails():
        if not at_once:
            yield env.timeout(1.0)
        raise RuntimeError("a fault")
        yield

    def simulate():
        env.begin(fails())
        env.pass_until(env.timeout(2.0))

    with pytest.raises(RuntimeError, match="a fault"):
        simulate()


@pytest.mark.parametrize("is_in_one_piece", [True, False])
def test_what_is_hastened_happens_once_and_now(is_in_one_piece):
    env, times = VirtualTime(), []
    due = env.timeout(5.0)
    due.callbacks.append(lambda _: times.append(env.now))

    def hasten():
        yield env.timeout(1.0)
        env.hasten(due)
        env.hasten(due)

    env.begin(hasten())
    end = env.timeout(9.0)
    if is_in_one_piece:
        env.pass_until(end)
    else:
        env.run(until=end)
    assert (times, env.now) == ([1.0], 9.0)
