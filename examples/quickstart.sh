#!/usr/bin/env bash
# From a clean clone to an answer: builds Millrace, fetches the model, serves it and asks a question.
#   examples/quickstart.sh           leaves the server running
#   examples/quickstart.sh --once    stops it and returns its exit code
# MILLRACE_BIN names a built binary to use instead of building one, MILLRACE_CONFIG another deployment than examples/quickstart.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

once=no
case "${1:-}" in
  "") ;;
  --once) once=yes ;;
  *) echo "usage: examples/quickstart.sh [--once]" >&2; exit 2 ;;
esac

missing=()
if [ -z "${MILLRACE_BIN:-}" ]; then
  command -v cargo >/dev/null || missing+=("cargo (https://rustup.rs, version 1.95 or newer)")
  command -v gcc >/dev/null || command -v cc >/dev/null || missing+=("gcc (Debian: apt-get install gcc g++)")
  command -v g++ >/dev/null || command -v c++ >/dev/null || missing+=("g++ (Debian: apt-get install g++)")
fi
if ! command -v python3 >/dev/null; then
  missing+=("python3 (Debian: apt-get install python3 python3-pip python3-venv)")
else
  python3 -m pip --version >/dev/null 2>&1 || missing+=("pip for python3 (Debian: apt-get install python3-pip)")
  python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=("venv for python3 (Debian: apt-get install python3-venv)")
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "The quickstart needs what this machine does not have:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi

examples/fetch-model.sh
if [ -z "${MILLRACE_BIN:-}" ]; then
  echo "build: release build of millrace (the first one takes some minutes)"
  cargo build --release --locked --package millrace
  MILLRACE_BIN="${CARGO_TARGET_DIR:-target}/release/millrace"
fi

config="${MILLRACE_CONFIG:-examples/quickstart.toml}"
log=$(mktemp --suffix=.millrace-quickstart.log)
"$MILLRACE_BIN" serve -c "$config" >"$log" 2>&1 &
server=$!
stop() { kill -TERM "$server" 2>/dev/null || true; }
trap stop INT TERM

# The server says where it listens before it loads the model.
said() { sed -nE "s/$1/\\1/p" "$log"; }
for _ in $(seq 200); do
  address=$(said '^listening on (http[^,]*),.*')
  [ -z "$address" ] && kill -0 "$server" 2>/dev/null || break
  sleep 0.05
done

admin=$(said '^listening on .*, admin on (http[^;]*);.*')

status=1
if [ -n "$address" ]; then
  status=0
  python3 examples/clients/quickstart.py --server "$address" --admin "$admin" --server-pid "$server" || status=$?
fi
if [ "$status" -ne 0 ]; then
  echo "The server's log ($log):" >&2
  tail -n 20 "$log" >&2
  stop
  wait "$server" || true
  exit "$status"
fi

if [ "$once" = yes ]; then
  stop
  wait "$server" || status=$?
  rm -f "$log"
  exit "$status"
fi
cat <<TEXT

The server goes on (process $server, log $log). Try:
  curl -N $address/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$(said '^ready: (.*) \([0-9]+ tokens of context\)$')", "stream": true, "max_tokens": 100, "messages": [{"role": "user", "content": "Name three colours."}]}'
Stop it with: kill $server
TEXT
trap - INT TERM
