#!/bin/sh
# Runs what jobs/calibrate.nomad.hcl runs on a GPU, here on the processor, with the example
# model: the scales of its activations, then a checkpoint with them; and GPTQ. AWQ of
# llm-compressor wants a GPU. What is installed goes to .venv beside this file.
#
#   bench/weights/calibrate.sh [scales|gptq|awq ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/.venv/bin/python" ] || python3 -m venv "$here/.venv"
"$here/.venv/bin/python" -c 'import llmcompressor' 2>/dev/null || "$here/.venv/bin/pip" install -q 'llmcompressor>=0.10'
cd "$here/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/<<-PYTHON/,/^ *PYTHON$/p' jobs/calibrate.nomad.hcl | sed '1d;$d;s/^          //' >"$work/calibrate.py"
for method in ${*:-scales gptq}; do
    "$here/.venv/bin/python" "$work/calibrate.py" "$method" examples/freight/weights examples/freight/traffic.jsonl "$work/$method" 64 512
    case $method in
    scales)
        go run ./cmd/llmops quantise examples/freight/weights --scheme fp8-static --keep lm_head --scales "$work/scales" --out "$work/static"
        ;;
    esac
done
