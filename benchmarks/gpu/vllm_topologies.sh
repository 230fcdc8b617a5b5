#!/bin/sh
# Checks vLLM on one CUDA device as Chiasm starts it: each topology's servers share the device, and an answer about a
# drawn picture must be right. Some minutes a topology; the packaged model needs no download.
# usage: benchmarks/gpu/vllm_topologies.sh PYTHON [TOPOLOGY...]   (PYTHON: of an environment with vLLM 0.32)
set -eu
cd "$(dirname "$0")/../.."
python=${1:?usage: $0 PYTHON [TOPOLOGY...]}
shift
[ $# -gt 0 ] || set -- e-pd e-p-d
failed=""
for topology in "$@"; do
    echo "== $topology"
    case $topology in # one entry for each server
        agg) devices='["0"]' ;;
        e-p-d) devices='["0","0","0"]' ;;
        *) devices='["0","0"]' ;;
    esac
    timeout 240 .venv/bin/chiasm doctor --engine vllm --topology "$topology" --set vllm.python="$python" \
        --set vllm.device=cuda --set vllm.devices="$devices" --set routing.workers=1 --set vllm.eager=yes --set vllm.memory_share=0.25 \
        --set vllm.encoder_memory_share=0.1 --set engine.dtype=bfloat16 --set vllm.max_running=16 || failed="$failed $topology"
done
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "all topologies as they must be"
