#!/usr/bin/env bash
# A headless Chromium for the tests of `naspipe report`, where apt-get may install one.
# Without it those tests are skipped and say so; nothing else needs it. Never fails.
set -uo pipefail
if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    exit 0
fi
echo "naspipe: installing chromium for the tests of the report (once) ..." >&2
export DEBIAN_FRONTEND=noninteractive
install() { timeout 300 apt-get install --yes --no-install-recommends -qq "$@" >/dev/null 2>&1; }
install chromium fonts-dejavu-core ||
    { timeout 120 apt-get update -qq >/dev/null 2>&1 && install chromium fonts-dejavu-core; } ||
    echo "naspipe: chromium could not be installed; the tests that need it are skipped" >&2
exit 0
