"""A plugin package as `pip install` leaves it: a processor that watches its own state, found by its entry points."""

from pathlib import Path

_SCORER = '''
"""A reranker that counts the contexts of requests that are under way."""

import gc
import weakref

from chiasm.pooling.io.reranker import Reranker

ALIVE = weakref.WeakSet()


class Probe(Reranker):
    name = "probe"

    def parse(self, data):
        return super().parse({"query": "a", "candidates": ["b"]} if data == "report" else data)

    def pre(self, request, context):
        ALIVE.add(context)
        work = super().pre(request, context)
        context.state = (*context.state, request.query)
        return work

    def post(self, outputs, context):
        ids, top_n, query = context.state
        if query == "fail":
            raise ValueError("a bug in post")
        context.state = (ids, top_n)
        gc.collect()
        return super().post(outputs, context) | {"alive": len(ALIVE), "query": query}


def inside_vllm():
    return "chiasm_probe.inside_vllm.Inside"
'''
_INSIDE = """
from chiasm.workers.vllm.processor import for_vllm
from chiasm_probe import Probe

Inside = for_vllm(Probe)
"""


def install(folder: Path) -> Path:
    """Write the package into a folder for PYTHONPATH."""
    package, metadata = folder / "chiasm_probe", folder / "chiasm_probe-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text(_SCORER)
    (package / "inside_vllm.py").write_text(_INSIDE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: chiasm-probe\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[vllm.io_processor_plugins]\nprobe = chiasm_probe:inside_vllm\n")
    return folder
