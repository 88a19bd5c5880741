#!/usr/bin/env bash
# Seeded kills of stages and launchers at every point; writes artifacts/faults/storm.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh all
exec "$PYTHON" scripts/fault_storm.py "$@"
