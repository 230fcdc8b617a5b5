from chiasm.simulator.clock import VirtualTime
from chiasm.simulator.device import Busy
from chiasm.simulator.host import OwnCores
from chiasm.simulator.media import MediaThreads
from chiasm.simulator.traffic import Picture


def ends(num_threads, pictures):
    env, found = VirtualTime(), {}
    threads = MediaThreads(OwnCores(env), num_threads, lambda picture: picture.num_pixels, Busy())
    for picture in pictures:
        name = "nothing" if picture is None else picture.identity
        threads.prepare(picture, lambda name=name: found.setdefault(name, env.now))
    env.run()
    return found


def test_threads_work_side_by_side_in_the_order_of_arrival():
    pictures = [Picture("a", 3, 1), Picture("b", 1, 1), Picture("c", 1, 1), Picture("d", 5, 1)]
    assert ends(2, pictures) == {"b": 1, "c": 2, "a": 3, "d": 7}


def test_what_only_waits_for_a_thread_holds_none():
    assert ends(1, [Picture("a", 2, 1), None, Picture("b", 1, 1)]) == {"a": 2, "nothing": 2, "b": 3}
