#!/usr/bin/env bash
# The test suite with all of its set-up. --fast leaves out what launches processes or trains; --all
# adds what the ordinary run leaves out: whole products of cases, and long tests. --stand-in runs
# beside an accelerator that torch sees and that is not there.
# Other arguments go to pytest (./run_tests.sh -k causal; -n 0 for one process only).
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh" all
export PATH="$PWD/.venv/bin:$PATH"

is_fast=false
arguments=()
for argument in "$@"; do
    if [ "$argument" = --fast ]; then
        is_fast=true
        arguments+=(-m "not launches")
    elif [ "$argument" = --stand-in ]; then
        export NASPIPE_STAND_IN=always
    else
        arguments+=("$argument")
    fi
done

scripts/check >.venv/check.log 2>&1 &
check=$!
checked() {
    wait "$check" || {
        cat .venv/check.log >&2
        return 1
    }
}

browser=
if ! $is_fast; then
    scripts/setup_browser.sh &
    browser=$!
fi
for data in en-de-2k fashion-mnist; do
    naspipe data prepare "$data"
done
if ! $is_fast; then
    checked || {
        wait
        exit 1
    }
    wait "$browser"
fi
status=0
workers=$(($(nproc) + 1)) # tests wait for processes now and then
run() {
    # By file: what the tests of a file share is made once. In the order of tests/tiers.py.
    "$PYTHON" -m pytest -n $((workers < 4 ? workers : 4)) \
        --dist loadfile --no-loadscope-reorder "$@"
}
beside=(tests/equivalence/test_{policies,recipes,rules}.py)
if [ $# = 0 ] || [ "$*" = --all ]; then
    # Launchers compute nothing themselves: these run beside an accelerator that torch sees.
    run "${arguments[@]}" "${beside[@]/#/--ignore=}" || status=$?
    NASPIPE_STAND_IN=always run "${arguments[@]}" "${beside[@]}" || status=1
    if [ "$*" = --all ]; then
        for what in "--pairs 600" --faults --shown; do
            # shellcheck disable=SC2086 # an option and its value
            "$PYTHON" scripts/check_compositions.py $what || status=1
        done
    fi
else
    run "${arguments[@]}" || status=$?
fi
if $is_fast; then
    checked || status=1
fi
exit "$status"
