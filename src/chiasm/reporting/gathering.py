"""Making a report: asking a server what it is, measuring it, and trying what it should refuse."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from chiasm.bench.cell import Watcher
from chiasm.bench.probe import probe
from chiasm.bench.server import ServerView
from chiasm.bench.workload.classes import Kind, RequestClass
from chiasm.errors import UnsupportedFeatureError
from chiasm.gateway.policy import ServerPolicy
from chiasm.observability.receipt import Receipt
from chiasm.protocol.openai.models import ModelCard, ModelList
from chiasm.reporting.cells import Cells, Plan, StateAnswer
from chiasm.reporting.content import Cell, Example, Refusal, Report
from chiasm.reporting.growth import Growth, measure_growth, memory_of
from chiasm.reporting.refusals import try_refusals

OnStep = Callable[[str, int, int], None]
"""Told what comes next, how many steps are done, and of how many."""

_KINDS: dict[str, Kind] = {"generate": "chat", "embed": "embeddings", "score": "rerank"}
_MAX_GROWING = 8
_SLOW_SHARE = 0.95


class _Receipts(msgspec.Struct):
    receipts: list[Receipt]


async def make_report(server: ServerView, plan: Plan, folder: Path, on_step: OnStep, watcher: Watcher) -> Report:
    """Measure a running server, which should have nothing else to do; takes minutes.

    Args:
        server: Whom to ask.
        plan: What is measured; `kind` is replaced by what the model does.
        folder: For the files of the load generator.
        on_step: Told how far it is.
        watcher: Told how each cell goes.

    Raises:
        EngineError: The server does not answer.
        InvalidSettingError: It is not Chiasm, or of another version.
        AuthenticationError: It wants a key, or one with the scope metrics.
    """
    return await _Making(server, plan, folder, on_step, watcher).report()


class _Making:
    def __init__(self, server: ServerView, plan: Plan, folder: Path, on_step: OnStep, watcher: Watcher) -> None:
        self._server = server
        self._plan = plan
        self._folder = folder
        self._on_step = on_step
        self._watcher = watcher
        self._num_done = 0
        self._num_all = 0

    async def report(self) -> Report:
        started_s = time.monotonic()
        policy = await self._server.get("/debug/policy", ServerPolicy)
        model = (await self._server.get("/v1/models", ModelList)).data[0]
        plan = self._plan = msgspec.structs.replace(self._plan, kind=_kind_of(model))
        stages = plan.stage_classes(takes_images=model.takes_images and plan.kind == "chat")
        self._num_all = len(stages) + len(plan.concurrency) + 4
        target = self._server.target
        cells = Cells(
            self._folder, self._server, target, await probe(target, {plan.kind}, model.id), plan, self._watcher
        )
        alone = [await self._measured(cells, f"{_name(one.images, one.image_width)}", one) for one in stages]
        main = plan.main_class(takes_images=any(one.images for one in stages))
        together = [await self._measured(cells, f"open-{count}", main, count) for count in plan.concurrency]
        caches = await self._caches(cells, main.images, main.image_width)
        examples = await self._examples()
        growth = await self._growth(plan, main.images, model)
        self._step("What should be refused")
        refusals = await self._refusals(model)
        state = await self._server.get("/debug/state", StateAnswer)
        return Report(
            made_at_unix_s=time.time(),
            took_s=time.monotonic() - started_s,
            version=state.version,
            uptime_s=state.uptime_s,
            load=plan.load | {"pictures": str(main.images), "size": str(main.image_width)},
            model=model,
            fleet=state.fleet,
            policy=policy,
            stages=tuple(alone),
            concurrency=tuple(together),
            caches=caches,
            totals=state.totals,
            worker_totals=state.worker_totals,
            memory=await memory_of(self._server),
            growth=growth,
            examples=examples,
            refusals=refusals,
        )

    async def _measured(self, cells: Cells, key: str, kind: RequestClass, concurrency: int = 1, seed: str = "") -> Cell:
        self._step(key)
        return await cells.measure(key, kind, concurrency, seed)

    async def _caches(self, cells: Cells, num_images: int, size: int) -> tuple[Cell, ...]:
        """New content, then the very same once more."""
        if not num_images:
            self._step("caches")
            return ()
        kind = self._plan.request(num_images, size)
        new = await self._measured(cells, "cache-new", kind, seed="cache")
        again = await self._measured(cells, "cache-again", kind, seed="cache")
        return new, again

    async def _growth(self, plan: Plan, num_images: int, model: ModelCard) -> Growth | None:
        self._step("Memory")
        if plan.kind != "chat":
            return None
        dialect = await probe(self._server.target, {"chat"}, model.id)
        count = min(_MAX_GROWING, max(plan.concurrency))
        return await measure_growth(self._server, dialect, plan.request(num_images, plan.sizes[0]), count)

    async def _examples(self) -> tuple[Example, ...]:
        found = (await self._server.get("/debug/receipts", _Receipts)).receipts
        finished = sorted((one for one in found if one.outcome == "finished"), key=lambda one: one.e2e_s)
        if not finished:
            return ()
        middle = finished[len(finished) // 2]
        slow = finished[min(len(finished) - 1, int(_SLOW_SHARE * len(finished)))]
        return Example(what="usual", receipt=middle), Example(what="slow", receipt=slow)

    async def _refusals(self, model: ModelCard) -> tuple[Refusal, ...]:
        if self._plan.kind != "chat":
            return ()
        return await try_refusals(
            self._server, model.id, takes_images=model.takes_images, max_tokens=model.max_model_len
        )

    def _step(self, what: str) -> None:
        self._on_step(what, self._num_done, self._num_all)
        self._num_done += 1


def _kind_of(model: ModelCard) -> Kind:
    tasks = model.tasks or ("generate",)
    found = next((_KINDS[task] for task in tasks if task in _KINDS), None)
    if found is None:
        raise UnsupportedFeatureError(f"There is no load for a model that does {', '.join(tasks)}")
    return found


def _name(num_images: int, size: int) -> str:
    return f"{num_images}x{size}" if num_images else "text"
