#!/usr/bin/env bash
# Makes a site of docs/: build/docs/index.html. Warnings are errors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh all
exec "$PYTHON" -m sphinx -q -W --keep-going -b html docs "${1:-build/docs}"
