#!/bin/sh
# Compares downloads from a server on this machine that speaks the Hub's protocol: ours,
# curl's and huggingface_hub's over HTTP. What is installed goes to .venv beside this file.
#
#   bench/weights/download.sh [MIB [ROUNDS [DELAY [RATE]]]]
#
# DELAY comes before each answer of the server, RATE is what one connection gets, in MiB a
# second; 0: all there is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/.venv/bin/python" ] || python3 -m venv "$here/.venv"
"$here/.venv/bin/python" -c 'import huggingface_hub' 2>/dev/null || "$here/.venv/bin/pip" install -q 'huggingface_hub>=1.18'
cd "$here/../.."
go build -o "$here/.venv/bin/llmops" ./cmd/llmops
go build -o "$here/.venv/bin/hubserver" ./bench/weights/hubserver
go build -o "$here/.venv/bin/unverified" ./bench/weights/unverified
work=${TMPDIR:-/tmp}/llmops-bench-download
mkdir -p "$work"
"$here/.venv/bin/python" "$here/download.py" "$here" "$work" "${1:-2048}" "${2:-3}" "${3:-0s}" "${4:-0}"
rm -rf "$work/out"
