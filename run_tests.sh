#!/usr/bin/env bash
# The whole test suite with all of its set-up. Arguments go to pytest (./run_tests.sh -k causal).
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"
export PATH="$PWD/.venv/bin:$PATH"
scripts/setup_browser.sh &
scripts/check || {
    wait
    exit 1
}
wait
for data in en-de-2k fashion-mnist; do
    naspipe data prepare "$data"
done
exec "$PYTHON" -m pytest "$@"
