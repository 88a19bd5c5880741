#!/usr/bin/env bash
# Train one supernet on 1, 2 and 4 stages on real data and prove that the bits are the same.
# ./run_compare.sh --help lists the options; the exit status is that of `naspipe compare`.
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh" run
exec "$PYTHON" scripts/run_compare.py "$@"
