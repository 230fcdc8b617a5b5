"""`python -m benchmarks WHAT ...`: run one benchmark."""

import importlib
import signal
import sys
from contextlib import ExitStack, suppress

from chiasm.bench.awake import cores_awake
from chiasm.errors import InvalidSettingError

COMMANDS = {
    "adapters": "LoRA adapters in a batch against the base model, and adapters that come and go",
    "ec_transfer": "handing an embedding to another process",
    "engine": "embedded engine against transformers and vLLM",
    "engine_floor": "where a decode step's time goes, against the memory's speed",
    "topologies": "text beside pictures, answers under load, repeats, forwarding; the grid is `chiasm bench grid`",
    "gateway_alone": "the gateway beside other fronts, before a worker that answers at once",
    "gateway_tax": "what HTTP adds to the engine",
    "media": "decoding and preparing pictures against Pillow with transformers, and OpenCV",
    "downloads": "fetching a request's pictures at once against one after the other",
    "cache_timing": "what a tenant can tell from times about what another has asked",
    "refusals": "what refusals cost the server when clients ask again at once",
    "noisy_neighbour": "time to first token of a tenant beside another that floods the server",
    "pooling": "pairs a second of a reranker, against transformers, sentence-transformers, infinity-emb and vLLM",
    "pooling_paths": "a reranker behind one endpoint against two hops: a service around a fixed-padding model server",
    "pooling_soak": "pooling requests without end, with processors that fail and clients that leave",
    "simulator_scale": "a million simulated requests over a thousand workers",
    "simulator_grid": "the simulator, calibrated on micro-runs, held against a grid that was measured",
    "scale": "what changes when a fleet has thousands of workers, simulated",
    "simulator_reference": "the simulator fitted to some published numbers, held against the others",
    "rolling": "every process of a fleet replaced under load, one after the other",
    "chaos": "three gateways over a split fleet in which something fails all the time",
    "video": "sampling frames of a video against reading it with OpenCV",
    "soak": "requests without end, with faults and clients that leave",
    "vllm_ec": "handing an embedding from one vLLM server to another, against vLLM's example connector",
    "vllm_failures": "embeddings that go wrong between vLLM servers, with vLLM's example connector and Chiasm's",
    "vllm_fronts": "the same behind Chiasm, and behind vLLM's example proxy: what clients get",
    "vllm_topologies": "Chiasm over vLLM servers against one vLLM server, same cores, pictures nobody has seen",
    "aiperf_agreement": "chiasm bench and AIPerf on the same server: do they measure the same?",
    "overhead": "what receipts, metrics, logs and traces cost a request, in CPU time",
    "load_generator": "chiasm bench against a server of known delays, and what a request costs it",
    "render": "write docs/performance.md from the results",
}


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in COMMANDS:
        print("usage: python -m benchmarks WHAT [options]\n")
        print("\n".join(f"  {name:12} {text}" for name, text in COMMANDS.items()))
        raise SystemExit(0 if what in ("", "-h", "--help") else 2)
    # so that a benchmark that is told to end lets paused processes go on and ends its own
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as until_the_end:
        with suppress(InvalidSettingError):  # results say whether cores were kept awake
            until_the_end.enter_context(cores_awake())
        importlib.import_module(f"benchmarks.{what}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
