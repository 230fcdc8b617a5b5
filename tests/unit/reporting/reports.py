"""Reports made by hand."""

import random

from chiasm.bench.metrics.stages import StageBreakdown
from chiasm.bench.metrics.throughput import Throughput
from chiasm.bench.statistics.distribution import distribution
from chiasm.gateway.policy import policy_of
from chiasm.observability.memory import AllocatorMemory, MemoryPart, ProcessMemory, WorkerMemory
from chiasm.observability.receipt import Receipt
from chiasm.protocol.fleet import FleetState, MemberState
from chiasm.protocol.openai.models import ModelCard
from chiasm.reporting.content import Cell, Example, Refusal, Report, Samples
from chiasm.reporting.growth import Growth
from chiasm.settings import Settings

SECRET = "what-nobody-may-read"


def values(level_ms, count=40, seed=0):
    """Latencies around a level, as skewed as those of servers."""
    rng = random.Random(seed)
    return tuple(level_ms * rng.lognormvariate(0, 0.2) for _ in range(count))


def cell(key="1x448", concurrency=1, level_ms=100.0, seed=0, num_images=1, failed=0):
    samples = values(level_ms, seed=seed)
    spread = distribution(one / 1e3 for one in samples)
    return Cell(
        key=key,
        concurrency=concurrency,
        num_images=num_images,
        image_size=(448, 448) if num_images else None,
        output_tokens=32,
        num_requests=len(samples),
        outcomes={"finished": len(samples) - failed} | ({"timed_out": failed} if failed else {}),
        throughput=Throughput(window_s=4.0, requests_per_s=10.0, output_tokens_per_s=320.0, body_mb_per_s=1.0),
        ttft=spread,
        tpot=spread,
        e2el=spread,
        prompt_tokens=90.0,
        stages=StageBreakdown(
            count=40,
            stages_ms={"encode": 60.0, "prefill": 35.0},
            unaccounted_ms=1.0,
            outside_ms=4.0,
            ttft_ms=100.0,
            unaccounted_share=0.01,
        ),
        share_cached_tokens=0.25,
        share_avoided_pictures=0.5,
        samples=Samples(ttft_ms=samples, e2el_ms=samples),
    )


def report(level_ms=100.0, seed=0, *, failed=0, refusals=None, settings=None, load=None):
    process = ProcessMemory(
        rss_bytes=2**30, pss_bytes=2**29, shared_bytes=2**20, peak_rss_bytes=2**30, swap_bytes=0, num_oom_kills=0
    )
    receipt = Receipt(
        request_id="chatcmpl-1",
        model="tiny",
        outcome="finished",
        ttft_s=0.1,
        e2e_s=0.3,
        stages_s={"encode": 0.06, "prefill": 0.03},
        unaccounted_s=0.01,
        decode_s=0.2,
        num_items=1,
        num_prompt_tokens=90,
    )
    return Report(
        made_at_unix_s=1.8e9,
        took_s=130.0,
        version="0.1.0",
        uptime_s=300.0,
        load=load or {"kind": "chat"},
        model=ModelCard(
            id="tiny <vlm>",
            created=0,
            family="qwen3_vl",
            max_model_len=4096,
            takes_images=True,
            dtype="float32",
            device="cpu",
            model_revision="abc",
            processor_revision="def",
        ),
        fleet=FleetState(
            topology="local", policy="", members=(MemberState(name="w", roles=("encode",), state="ready"),)
        ),
        policy=policy_of(settings or Settings()),
        stages=(cell("text", level_ms=level_ms, seed=seed, num_images=0), cell(level_ms=level_ms, seed=seed + 1)),
        concurrency=tuple(
            cell(f"open-{count}", count, level_ms * count, seed + count, failed=failed) for count in (1, 2, 4)
        ),
        caches=(cell("new", seed=seed), cell("again", level_ms=5.0, seed=seed)),
        totals={"prompt_tokens": 100.0, "cached_tokens": 25.0, "prompt_media_items": 10.0},
        worker_totals={"encoded_items": 6.0, "encodes_avoided_prefix": 4.0},
        memory=(
            WorkerMemory(
                worker="w",
                process=process,
                allocator=AllocatorMemory(taken_bytes=3, used_bytes=2, kept_bytes=1),
                parts=(MemoryPart(name="kv_slots", kind="requests", used_bytes=5, reserved_bytes=9),),
            ),
            WorkerMemory(worker="gone", error="deadline_exceeded"),
        ),
        growth=Growth(
            num_requests=8,
            num_finished=8,
            used_bytes_per_request=1e6,
            rss_bytes_per_request=2e6,
            kept_rss_bytes=5,
            kept_cache_bytes=6,
            num_looks=9,
        ),
        examples=(Example(what="usual", receipt=receipt),),
        refusals=refusals if refusals is not None else (refusal(),),
    )


def refusal(code="media_refused"):
    return Refusal(sent="a file", status=400 if code else 200, code=code, message="not served <here>")
