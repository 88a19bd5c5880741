#!/usr/bin/env bash
# The whole test suite with all of its set-up. With --fast first: only what launches nothing.
# Further arguments go to pytest (./run_tests.sh -k causal).
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"
export PATH="$PWD/.venv/bin:$PATH"
tier=()
if [ "${1:-}" = --fast ]; then
    shift
    tier=(-m "not launches")
else
    scripts/setup_browser.sh &
fi
scripts/check || {
    wait
    exit 1
}
wait
for data in en-de-2k fashion-mnist; do
    naspipe data prepare "$data"
done
workers=$(nproc)
exec "$PYTHON" -m pytest -n $((workers < 4 ? workers : 4)) --dist worksteal "${tier[@]}" "$@"
