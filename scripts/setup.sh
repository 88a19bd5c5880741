#!/usr/bin/env bash
# Makes .venv with the pinned packages, once; later calls find it up to date and do nothing.
#
#   source scripts/setup.sh run     what training and comparing need
#   source scripts/setup.sh         everything: the tests' and the benchmarks' packages, too
#
# Sourced by the run_*.sh: leaves $PYTHON pointing at the environment's interpreter. uv is used
# where it is there, pip otherwise. NASPIPE_PYTHON=/path/to/python names an environment that has
# the packages already; then nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local name found
    for name in python3 python3.13 python3.12 python3.11; do
        for found in $(type -ap "$name"); do
            case $found in "$PWD"/.venv/*) continue ;; esac # it is about to be made anew
            if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
                echo "$found"
                return
            fi
        done
    done
    echo "naspipe: expected Python 3.11 or newer on PATH, found none; install it first" >&2
    return 2
}

make_environment() {
    local base
    base=$(find_python)
    rm -rf .venv
    if command -v uv >/dev/null; then
        uv venv --quiet --no-python-downloads --python "$base" .venv
    else
        "$base" -m venv .venv || {
            echo "naspipe: $base cannot make a virtual environment; install its venv package" >&2
            exit 2
        }
    fi
}

install() {
    local how
    if command -v uv >/dev/null; then
        # uv does not look at pip's settings: where torch's build for this machine lies is handed on.
        how=(uv pip install --quiet --python "$PYTHON" ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"})
    else
        how=("$PYTHON" -m pip install --no-compile --quiet --quiet --disable-pip-version-check)
    fi
    "${how[@]}" -c constraints.txt "$@"
}

check_given() {
    local missing
    missing=$("$NASPIPE_PYTHON" -c '
import importlib.util, sys
needed = "torch numpy msgpack zmq rich safetensors sklearn subword_nmt plotly scipy isal"
print(*[name for name in needed.split() if importlib.util.find_spec(name) is None])
sys.exit(sys.version_info < (3, 11))') || {
        echo "naspipe: expected NASPIPE_PYTHON to be Python 3.11 or newer, found $NASPIPE_PYTHON" >&2
        exit 2
    }
    if [ -n "$missing" ]; then
        echo "naspipe: NASPIPE_PYTHON: no $missing there; run '$NASPIPE_PYTHON -m pip install -e .'" >&2
        exit 2
    fi
}

needs=${1:-all}
if [ -n "${NASPIPE_PYTHON:-}" ]; then
    check_given
    PYTHON=$NASPIPE_PYTHON
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    return 0 2>/dev/null || exit 0
fi
PYTHON="$PWD/.venv/bin/python"
# Packages are installed as source. What the first process compiles is kept for the next ones: where
# it may not be, each would compile torch again, which takes longer than to train a small space.
unset PYTHONDONTWRITEBYTECODE
wanted=$(cat constraints.txt pyproject.toml setup.py | cksum)
found=$(cat .venv/naspipe-setup 2>/dev/null || true)
if [ "$found" != "$wanted all" ] && [ "$found" != "$wanted $needs" ]; then
    extras=
    [ "$needs" = run ] || extras='[dev,docs,bench,nni-rl,onnx,tensorboard,search]'
    echo "naspipe: setting up .venv (once; takes a minute or two) ..." >&2
    [ "$found" = "$wanted run" ] || make_environment
    install setuptools
    install --no-build-isolation -e ".$extras"
    # Every process imports these: they are compiled here, and not in several at once.
    "$PYTHON" -c 'import naspipe, plotly.graph_objects, sklearn.datasets, torch._dynamo'
    # NNI writes a file of its own when it is first imported: not in several processes at once.
    [ "$needs" = run ] || "$PYTHON" -W ignore -c 'import nni.nas.nn.pytorch'
    echo "$wanted $needs" >.venv/naspipe-setup
fi
