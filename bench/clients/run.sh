#!/bin/sh
# Runs the OpenAI clients of Python and Go against the embedded engine, one call of
# every endpoint each. Installs the Python client into .venv beside this file.
#
#   bench/clients/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'kill $pids 2>/dev/null || true; rm -rf "$work"' EXIT
pids=

[ -x "$here/.venv/bin/python" ] || python3 -m venv "$here/.venv"
"$here/.venv/bin/python" -c 'import openai' 2>/dev/null || "$here/.venv/bin/pip" install -q openai pyzmq msgspec
(cd "$root" && go build -o "$work/llmops" ./cmd/llmops)
(cd "$here/go" && go build -o "$work/client" .)

start() { # name, port, arguments after
  name=$1 port=$2
  shift 2
  "$work/llmops" engine serve --listen "127.0.0.1:$port" --version-name v1 "$@" >"$work/$name.log" 2>&1 &
  pids="$pids $!"
  i=0
  until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do
    i=$((i + 1))
    [ $i -lt 200 ] || { cat "$work/$name.log"; exit 1; }
    sleep 0.1
  done
}

start freight 18441 --model "$root/examples/freight/weights" --name freight --max-loras 2 --kv-events-endpoint tcp://127.0.0.1:18443 --kv-events-topic kv-events
start encoder 18442 --model "$root/examples/freight/encoder" --name encoder

export LLMOPS_GENERATE=http://127.0.0.1:18441 LLMOPS_ENCODE=http://127.0.0.1:18442 LLMOPS_EVENTS=tcp://127.0.0.1:18443
"$here/.venv/bin/python" "$here/client.py"
"$work/client"
