#!/usr/bin/env bash
# Check that smaller spaces, which conflict more, train slower: T(c0) > T(c1) > T(c2) > T(c3).
# Four stages simulated, two for real; ./run_throughput.sh --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh" all
exec "$PYTHON" scripts/paper/run.py throughput "$@"
