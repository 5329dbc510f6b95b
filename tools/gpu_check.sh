#!/bin/sh
# Check decoding on a CUDA GPU from this source tree: tools/gpu_check.sh OUT [options of gpu_check.py]
# PYTHON names an interpreter with torch for CUDA and the package's other dependencies.
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
if [ -z "$PYTHON" ]; then
    PYTHON=python3
    [ -x "$root/.venv/bin/python" ] && PYTHON="$root/.venv/bin/python"
fi
PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" "$root/tools/gpu_check.py" "$@"
