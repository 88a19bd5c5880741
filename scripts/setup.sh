#!/usr/bin/env bash
# Makes .venv with the pinned packages, once; later calls find it up to date and do nothing.
# Sourced by the run_*.sh: leaves $PYTHON pointing at the environment's interpreter.
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

PYTHON="$PWD/.venv/bin/python"
wanted=$(cat constraints.txt pyproject.toml setup.py | cksum)
if [ "$(cat .venv/naspipe-setup 2>/dev/null)" != "$wanted" ]; then
    base=$(find_python)
    echo "naspipe: setting up .venv (once; takes a minute or two) ..." >&2
    rm -rf .venv
    "$base" -m venv .venv || {
        echo "naspipe: $base cannot make a virtual environment; install its venv package" >&2
        exit 2
    }
    "$PYTHON" -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt setuptools
    "$PYTHON" -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt \
        --no-build-isolation -e '.[dev,bench,nni-rl,onnx,tensorboard,search]'
    # NNI writes a file of its own when it is first imported: not in several processes at once.
    "$PYTHON" -W ignore -c 'import nni.nas.nn.pytorch'
    echo "$wanted" >.venv/naspipe-setup
fi
