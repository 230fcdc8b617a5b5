#!/bin/sh
# Checks Chiasm's EC connector on a GPU with vLLM's V2 model runner, in some minutes: the answer over a handed-over
# embedding is the answer over the picture, and whatever goes wrong with one ends its request alone.
# usage: benchmarks/gpu/vllm_v2_runner.sh PYTHON [RESULT.json]   (PYTHON: of an environment with vLLM 0.32 and Chiasm)
set -eu
cd "$(dirname "$0")/../.."
python=${1:?usage: $0 PYTHON [RESULT.json]}
result=${2:-benchmarks/results/vllm-v2-runner.json}
export CHIASM_VLLM_PYTHON="$python" VLLM_USE_V2_MODEL_RUNNER=1
PYTHONPATH=src:. timeout 450 "$python" -m benchmarks vllm_failures --connectors chiasm --tolerance 0.05 --out "$result" \
    --server-arguments="--dtype bfloat16 --gpu-memory-utilization 0.2 --max-num-seqs 16"
"$python" - "$result" <<'PYTHON'
import json
import sys

rows = {name: row["chiasm"] for name, row in json.load(open(sys.argv[1]))["rows"].items()}
wrong = [name for name, row in rows.items() if row["is_wrong_answer"] or not row["engine_lives"]]
wrong += [name for name, row in rows.items() if not row["neighbour_finished"]]
if not rows["nothing wrong"]["is_right_answer"]:
    wrong.append("nothing wrong")
print("FAILED: " + ", ".join(wrong) if wrong else f"all {len(rows)} rows as they must be")
sys.exit(bool(wrong))
PYTHON
