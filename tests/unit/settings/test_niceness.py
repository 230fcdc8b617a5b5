"""Work that steps back: lower priorities for threads and processes, never higher ones, and never an error."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chiasm.media.decoding import PictureDecoder
from chiasm.media.isolation.pool import ProcessPool
from chiasm.settings import MediaSettings
from chiasm.settings import niceness as niceness_module
from chiasm.settings.niceness import process_steps_back, session_steps_back, thread_steps_back


def niceness(pid: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def test_a_thread_steps_back_alone_and_never_forward():
    with ThreadPoolExecutor(1) as pool:
        found = [
            pool.submit(lambda wanted: (thread_steps_back(wanted), niceness())[1], wanted).result()
            for wanted in (5, 0, 3, 7)
        ]
    assert found == [5, 5, 5, 7]
    assert niceness() == 0


def test_a_process_steps_back_with_all_its_threads_and_its_own_session():
    program = (
        "import os, threading; from pathlib import Path; from chiasm.settings.niceness import process_steps_back\n"
        "end = threading.Event(); other = threading.Thread(target=end.wait); other.start(); process_steps_back(6)\n"
        "print(*{os.getpriority(os.PRIO_PROCESS, int(one.name)) for one in Path('/proc/self/task').iterdir()})\n"
        "group = Path('/proc/self/autogroup'); print(group.read_text().split()[-1] if group.exists() else 6); end.set()"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, start_new_session=True
    )
    assert told.stdout.split() == ["6", "6"]


def test_a_system_that_refuses_or_knows_nothing_of_it_changes_nothing(monkeypatch):
    def refuses(*_):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuses)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(niceness_module, "Path", lambda _: Path("/nowhere"))
    thread_steps_back(5)
    process_steps_back(5)
    session_steps_back(os.getpid(), 5)
    monkeypatch.undo()
    assert niceness() == 0


def test_a_session_steps_back_when_the_system_lets_it(monkeypatch):
    written = []

    class Busy(type(Path())):
        def write_text(self, text, encoding):
            written.append((str(self), text))
            if len(written) < 3:
                raise BlockingIOError

    monkeypatch.setattr(niceness_module, "Path", Busy)
    monkeypatch.setattr(niceness_module.time, "sleep", lambda _: None)
    session_steps_back(2**30, 5)  # nobody's
    assert written == [(f"/proc/{2**30}/autogroup", "5")] * 3


async def test_decoders_step_back_as_far_as_the_setting_says():
    decoder = PictureDecoder(MediaSettings(niceness=4))
    assert decoder._pool.submit(niceness).result() == 4
    decoder.close()


def test_decoder_processes_step_back_before_they_take_a_picture():
    settings = MediaSettings(niceness=4, decoder="processes")
    pool = ProcessPool(settings, 1)
    try:
        pool._idle[0]._wait_ready()
        assert niceness(pool.idle_pids[0]) == 4
    finally:
        pool.close()
