#!/bin/sh
# Checks vLLM on one CUDA device as Chiasm starts it: each topology's servers share the device, and an answer about a
# drawn picture must be right. Some minutes a topology; the packaged model needs no download.
# usage: benchmarks/gpu/vllm_topologies.sh PYTHON [TOPOLOGY...]   (PYTHON: of an environment with vLLM 0.32)
# e-p-d-mooncake is e-p-d with keys and values over Mooncake by TCP, which must be installed there; not among the default ones.
set -eu
cd "$(dirname "$0")/../.."
python=${1:?usage: $0 PYTHON [TOPOLOGY...]}
shift
[ $# -gt 0 ] || set -- e-pd e-p-d
failed=""
for topology in "$@"; do
    echo "== $topology"
    kv=nixl
    case $topology in # one entry for each server
        agg) devices='["0"]' ;;
        e-p-d*) devices='["0","0","0"]' ;;
        *) devices='["0","0"]' ;;
    esac
    [ "$topology" != e-p-d-mooncake ] || kv=mooncake
    timeout 240 .venv/bin/chiasm doctor --engine vllm --topology "${topology%-mooncake}" --set vllm.kv_connector=$kv --set vllm.python="$python" \
        --set vllm.device=cuda --set vllm.devices="$devices" --set routing.workers=1 --set vllm.eager=yes --set vllm.memory_share=0.25 \
        --set vllm.encoder_memory_share=0.1 --set engine.dtype=bfloat16 --set vllm.max_running=16 --set vllm.mooncake_protocol=tcp || failed="$failed $topology"
done
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "all topologies as they must be"
