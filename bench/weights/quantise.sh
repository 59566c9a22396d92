#!/bin/sh
# Compares quantising on this machine's processor: ours, llm-compressor's model_free_ptq,
# and what reading all and writing half takes. What is installed goes to .venv beside this
# file.
#
#   bench/weights/quantise.sh [MIB [ROUNDS [PART...]]]
#
# PART is one of equal, floor, peer, logits, data, cgroup; default: all.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/.venv/bin/python" ] || python3 -m venv "$here/.venv"
"$here/.venv/bin/python" -c 'import llmcompressor' >/dev/null 2>&1 || "$here/.venv/bin/pip" install -q llmcompressor==0.14.0.1 compressed-tensors==0.19.0
cd "$here/../.."
go build -o "$here/.venv/bin/llmops" ./cmd/llmops
go build -o "$here/.venv/bin/quantisefloor" ./bench/weights/quantisefloor
mib=${1:-4096}
rounds=${2:-3}
shift 2>/dev/null || true
shift 2>/dev/null || true
work=${TMPDIR:-/tmp}/llmops-bench-quantise
mkdir -p "$work"
"$here/.venv/bin/python" "$here/quantise.py" "$here" "$work" "$mib" "$rounds" "$@"
rm -rf "$work"
