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
echo "naspipe: installing chromium for the tests of the report (once; about a minute) ..." >&2
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@" >/dev/null 2>&1; }
export -f apt
packages="chromium fonts-dejavu-core"
install="apt install --yes --no-install-recommends $packages"
# Only the download has a deadline: an interrupted installation would be left half done.
download="$install --download-only"
if timeout 180 bash -c "$download || { apt update && $download; }" && $install; then
    exit 0
fi
echo "naspipe: chromium could not be installed; the tests that need it are skipped" >&2
exit 0
