"""The second hop: transformers behind HTTP, one call at a time; texts come padded, pictures as pixels.

`python -m benchmarks.legacy.model_server text|pictures MODEL THREADS` prints its address when it is ready.
"""

import asyncio
import base64
import json
import sys
import threading
from typing import Any

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoModel, AutoModelForSequenceClassification

from benchmarks.legacy.serving import serve


class Texts:
    """Logits of padded pairs."""

    def __init__(self, directory: str) -> None:
        self._model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()

    def __call__(self, body: dict[str, Any]) -> list[float]:
        inputs = {name: torch.tensor(rows) for name, rows in body.items()}
        found: list[float] = self._model(**inputs).logits[:, 0].tolist()
        return found


class Pictures:
    """Cosines of one text and pictures."""

    def __init__(self, directory: str) -> None:
        self._model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()

    def __call__(self, body: dict[str, Any]) -> list[float]:
        pixels = np.frombuffer(base64.b64decode(body["pixels"]), np.float32).reshape(body["shape"])
        text, image = self._model.text_model, self._model.vision_model
        query = self._model.text_projection(text(torch.tensor([body["input_ids"]])).pooler_output)
        rows = self._model.visual_projection(image(torch.from_numpy(pixels.copy())).pooler_output)
        found: list[float] = torch.nn.functional.cosine_similarity(rows, query).tolist()
        return found


def app(model: Any) -> Starlette:
    """One route; callers queue up."""
    lock = threading.Lock()

    @torch.inference_mode()
    def compute(body: dict[str, Any]) -> list[float]:
        with lock:
            return model(body)

    async def infer(request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        return JSONResponse({"outputs": await asyncio.to_thread(compute, body)})

    return Starlette(routes=[Route("/infer", infer, methods=["POST"])])


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    serve(app({"text": Texts, "pictures": Pictures}[sys.argv[1]](sys.argv[2])))
