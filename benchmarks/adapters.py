"""What LoRA adapters cost: the base model against 1, 4 and 16 adapters in one batch, and adapters that come and go.

A cell is a batch of requests that run together on one worker; all have prompts of their own, so that nothing is found
in a cache. Cells of a round take turns in random order, and are compared with the base of their round. In the cells
'resident' and 'evicted', few requests at a time use one adapter after the other; the second worker has room for some.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from benchmarks import machine, models
from benchmarks.ratios import median_ratio
from chiasm.protocol.adapters import AdapterLoad, AdapterRef
from chiasm.protocol.generation import GenerateRequest, SamplingParams, TokenEvent, TokensPrompt
from chiasm.settings import AdapterSettings, EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker

RESULTS = Path(__file__).parent / "results/operations"
NUM_ADAPTERS = 16
BATCH = 16
COUNTS = (0, 1, 4, 16)
TARGETS = {
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
}


def write_adapters(model: Path, folder: Path, rank: int, targets: tuple[str, ...]) -> list[Path]:
    """Random adapters of a model, as PEFT saves them."""
    import torch  # noqa: PLC0415 - settings of threads come first
    from safetensors.torch import save_file  # noqa: PLC0415

    from chiasm.adapters.sizes import base_model  # noqa: PLC0415

    base = base_model(json.loads((model / "config.json").read_text()), {model.name})
    made = []
    for number in range(NUM_ADAPTERS):
        generator, tensors = torch.Generator().manual_seed(number), {}
        for layer in range(base.num_layers):
            for target in targets:
                outputs, inputs = base.shape_of(target)
                block = "mlp" if target in ("gate_proj", "up_proj", "down_proj") else "self_attn"
                name = f"base_model.model.model.layers.{layer}.{block}.{target}.lora_"
                tensors[f"{name}A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.02
                tensors[f"{name}B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.02
        path = folder / f"adapter-{number}"
        path.mkdir()
        save_file(tensors, path / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": None}
        (path / "adapter_config.json").write_text(json.dumps(config))
        made.append(path)
    return made


class Bench:
    """A worker with adapters, and batches for it."""

    def __init__(self, args: argparse.Namespace, adapters: list[Path], max_bytes: int) -> None:
        self._args = args
        self._adapters = adapters
        self._rng = random.Random(args.seed)
        self.worker = LocalWorker.start(
            models.directory(args.model),
            "model",
            EngineSettings(threads=args.threads, max_running=BATCH, decoder=args.decoder, prefix_cache_bytes=0),
            MediaSettings(),
            lambda _what, _share: None,
            adapters=AdapterSettings(roots=(str(adapters[0].parent),), max_bytes=max_bytes, max_rank=args.rank),
        )
        self._refs: list[AdapterRef] = []

    @property
    def store(self) -> Any:
        """Of the worker's adapters."""
        return self.worker._engine.language.adapters

    async def load(self) -> None:
        for path in self._adapters:
            info = await self.worker.load_adapter(AdapterLoad(name=path.name, directory=str(path)), 60)
            self._refs.append(info.ref)

    async def batch(self, num_adapters: int, concurrency: int = BATCH, count: int = BATCH) -> dict[str, float]:
        """Requests by turns with `num_adapters` adapters (0: none): tokens per second, CPU time per token."""
        requests = [self._request(number, num_adapters) for number in range(count)]
        allowed = asyncio.Semaphore(concurrency)

        async def run(request: GenerateRequest) -> int:
            num_tokens = 0
            async with allowed, aclosing(self.worker.generate(request)) as events:
                async for event in events:
                    num_tokens += len(event.token_ids) if isinstance(event, TokenEvent) else 0
            return num_tokens

        before = self.store.num_loads
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        num_tokens = sum(await asyncio.gather(*map(run, requests)))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return {
            "tokens_per_s": num_tokens / wall_s,
            "cpu_s_per_token": cpu_s / num_tokens,
            "loads": self.store.num_loads - before,
        }

    def _request(self, number: int, num_adapters: int) -> GenerateRequest:
        most = models.MAX_TOKEN[self._args.model]
        ids = tuple(self._rng.randrange(10, most) for _ in range(self._args.prompt_tokens))
        return GenerateRequest(
            request_id=str(number),
            prompt=TokensPrompt(ids),
            sampling=SamplingParams(temperature=0, max_tokens=self._args.tokens, ignore_eos=True),
            adapter=self._refs[number % num_adapters] if num_adapters else None,
            stream=False,
        )


async def measure(args: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows of all rounds, and what adapters take."""
    adapters = write_adapters(models.directory(args.model), folder, args.rank, TARGETS[args.targets])
    bench = Bench(args, adapters, 2**31)
    await bench.load()
    one = bench.store.num_bytes // NUM_ADAPTERS
    few = Bench(args, adapters, max(2**20, one * args.slots + one // 2))
    await few.load()
    cells = {f"{count} adapters": (bench, (count,)) for count in COUNTS}
    cells |= {"resident": (bench, (NUM_ADAPTERS, 2, NUM_ADAPTERS)), "evicted": (few, (NUM_ADAPTERS, 2, NUM_ADAPTERS))}
    for where, arguments in cells.values():
        await where.batch(*arguments)
    rows = []
    for number in range(args.rounds):
        for name in random.sample(list(cells), len(cells)):
            where, arguments = cells[name]
            rows.append({"round": number, "cell": name, **await where.batch(*arguments)})
        print(f"round {number + 1} of {args.rounds}", flush=True)
    sizes = {"bytes_of_one": one, "slots_of_evicted": max(1, few.store.num_resident)}
    await bench.worker.aclose()
    await few.worker.aclose()
    return rows, sizes


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and ratios within rounds to the base, of the evicted to the resident."""
    cells = {name: [row for row in rows if row["cell"] == name] for name in dict.fromkeys(row["cell"] for row in rows)}
    summary: dict[str, Any] = {}
    for name, found in cells.items():
        other = cells["resident" if name == "evicted" else name if name == "resident" else "0 adapters"]
        summary[name] = {"loads": sum(row["loads"] for row in found)}
        for figure in ("tokens_per_s", "cpu_s_per_token"):
            values = [row[figure] for row in sorted(found, key=lambda row: row["round"])]
            theirs = [row[figure] for row in sorted(other, key=lambda row: row["round"])]
            summary[name][figure] = {"median": statistics.median(values), "ratio": median_ratio(values, theirs)}
    return summary


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks adapters", description=__doc__)
    parser.add_argument("--model", choices=("tiny", "120m"), default="120m")
    parser.add_argument("--decoder", choices=("auto", "torch"), default="auto")
    parser.add_argument("--targets", choices=sorted(TARGETS), default="all")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--slots", type=int, default=4, help="adapters that the worker with too little room keeps")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    args = parser.parse_args(argv)
    described = machine.describe()
    with tempfile.TemporaryDirectory() as folder:
        rows, sizes = asyncio.run(measure(args, Path(folder)))
    summary = summarise(rows)
    for name, cell in summary.items():
        speed, cpu = cell["tokens_per_s"], cell["cpu_s_per_token"]
        print(
            f"{name:12} {speed['median']:8.1f} tokens/s  x{speed['ratio']['median']:.3f}"
            f"   {1000 * cpu['median']:7.2f} ms CPU per token  x{cpu['ratio']['median']:.3f}   {cell['loads']} loads"
        )
    if args.name:
        keys = ("model", "decoder", "targets", "rank", "slots", "threads", "prompt_tokens", "tokens", "rounds")
        setting = {key: getattr(args, key) for key in keys}
        result = {"machine": described, "settings": setting | sizes, "summary": summary, "rows": rows}
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
