#!/usr/bin/env bash
# A registry for teachers (--set teacher_registry=redis://HOST:PORT): redis-server or valkey-server in the
# foreground, in memory only, bound to one address. Ctrl-C or SIGTERM ends it; teachers show their cards anew
# when it is there again, and labels flow on without it.
#
#   scripts/registry.sh                                                  # 127.0.0.1:6379
#   scripts/registry.sh --bind 10.0.0.5 --password-file registry.password
#   scripts/registry.sh --bind 10.0.0.5 --open                           # a private network, no password
#
# With a password the address is redis://:PASSWORD@10.0.0.5:6379.
set -euo pipefail

address=127.0.0.1 port=6379 password_file="" is_open=no

refuse() {
    echo "registry.sh: $*" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case "$1" in
        --bind) address=${2:?an address of this machine}; shift 2 ;;
        --port) port=${2:?a port}; shift 2 ;;
        --password-file) password_file=${2:?a file}; shift 2 ;;
        --open) is_open=yes; shift ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) refuse "expected --bind ADDRESS, --port N, --password-file FILE or --open, found $1" ;;
    esac
done

server=$(command -v redis-server || command -v valkey-server || true)
if [ -z "$server" ]; then
    refuse "expected redis-server or valkey-server, found neither: apt-get install redis-server" \
        "(Debian, Ubuntu), dnf install valkey (Fedora), brew install valkey (macOS)"
fi

password=""
if [ -n "$password_file" ]; then
    [ -r "$password_file" ] || refuse "--password-file $password_file: expected a file that can be read"
    password=$(head -n 1 "$password_file")
    [[ "$password" =~ ^[A-Za-z0-9._~-]{8,}$ ]] || refuse "--password-file $password_file: expected 8 or more" \
        "letters, digits or . _ ~ - on its first line"
elif [[ "$address" != 127.* ]] && [ "$is_open" = no ]; then
    refuse "--bind $address: expected --password-file FILE with an address that others reach, or --open on a" \
        "private network"
fi

# Its settings go in by a pipe: a password would be seen among the arguments.
exec "$server" - <<SETTINGS
bind $address
port $port
protected-mode no
save ""
appendonly no
maxmemory 64mb
maxmemory-policy volatile-ttl
${password:+requirepass $password}
SETTINGS
