#!/usr/bin/env bash
# Install sentence-transformers and infinity-emb into environments of their own, over the torch of this checkout's .venv.
# usage: benchmarks/peers/pooling/install.sh TARGET_DIRECTORY
set -euo pipefail
target=${1:?usage: install.sh TARGET_DIRECTORY}
here=$(cd "$(dirname "$0")/../../.." && pwd)
common="scikit-learn==1.9.1 scipy==1.17.1 joblib==1.6.0 threadpoolctl==3.8.0 narwhals==2.29.0 cloudpickle==3.1.3 loky==3.7.0"

environment() { # name, packages
    "$here/.venv/bin/python" -m venv "$target/$1"
    packages=$("$target/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$here/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/base.pth"
    # shellcheck disable=SC2086 - lists of packages
    "$target/$1/bin/pip" install -q --no-deps $common $2
}

environment sentence-transformers "sentence-transformers==6.2.0"
# infinity-emb 0.0.78 calls what transformers 5 no longer has
environment infinity "infinity-emb==0.0.78 sentence-transformers==5.1.2 transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2"
echo "--sentence-transformers-python $target/sentence-transformers/bin/python --infinity-python $target/infinity/bin/python"
