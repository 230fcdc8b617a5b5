"""vLLM servers as workers: the worker contract in the calls that unmodified vLLM understands, and back.

`requests.py` and `answers.py` hold what all supported versions share, which is OpenAI's API with vLLM's own fields;
`versions/` has one small file for what a version of vLLM does in its own way. What vLLM does not check is checked
here: grids follow from a picture's own header, references carry no name that a client chose, special tokens in a
user's text are not let through.
"""

from chiasm.routing.vllm.model import ServedModel
from chiasm.routing.vllm.worker import VllmWorker

__all__ = ["ServedModel", "VllmWorker"]
