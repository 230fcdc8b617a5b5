"""Declares torchvision's operators just before its first import, for test environments whose torchvision is for CUDA.

Its compiled operators do not load beside a torch for CPU, and without their names it cannot be imported. Calling them
fails still; vLLM's picture processing calls none.
"""

import importlib.abc
import sys

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; it only wants to be asked."""

    library = None  # the operators are there as long as it is

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch  # noqa: PLC0415 - not before somebody wants torchvision

            _BeforeTorchvision.library = torch.library.Library("torchvision", "DEF")
            for schema in _SCHEMAS:
                _BeforeTorchvision.library.define(schema)


sys.meta_path.insert(0, _BeforeTorchvision())
