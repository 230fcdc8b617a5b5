"""An event loop whose time passes only when everybody waits: hours in milliseconds, and the same every time."""

import asyncio
import selectors


class _NothingComes(selectors.DefaultSelector):
    """Instead of waiting for a timer it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout=None):
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise RuntimeError("Everybody waits and no timer is set: the test would hang")
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs timers without waiting for them."""

    def __init__(self) -> None:
        self._virtual = _NothingComes()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class LoopClock:
    """The `Clock` that goes with it."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def unix_s(self) -> float:
        return 1.7e9 + self.now_s()


def run(main):
    """Run a coroutine to its end in virtual time; anything it leaves running is a failure."""

    async def checked():
        result = await main
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left running: {left}"
        return result

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(checked())
