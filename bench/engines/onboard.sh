#!/bin/sh
# Brings a model to live traffic with a real vLLM on a real Nomad agent, on the CPU: from
# the source through every stage to live, back again, and down. What it needs is installed
# by run.sh; nomad is to be on PATH.
#
#   bench/engines/onboard.sh [fp8-dynamic] [speculative] [local]
#
# fp8-dynamic quantises; speculative serves the source as it is, and the change is an
# option of the engine; local does without Nomad up to eval, vLLM being on PATH. Figures
# are printed, and the reports stay in .venv/onboard.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
env=$here/.venv
work=$env/onboard
[ $# -gt 0 ] || set -- fp8-dynamic speculative local
[ -x "$env/bin/vllm" ] || "$here/run.sh" vllm
command -v nomad >/dev/null || { echo "SKIPPED: no nomad on PATH, so that nothing was tested against a real agent" >&2; exit 0; }
cd "$root"
rm -rf "$work"
mkdir -p "$work/home" "$work/nomad"
data=$(mktemp -d) # a short path: tasks reach the agent by a socket below it, which has room for 107 bytes
go build -o "$work/llmops" ./cmd/llmops
# shellcheck disable=SC2046
set -- "$@" -- $("$env/bin/python" -c 'import socket
s = [socket.socket() for _ in range(4)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')
cases=
while [ "$1" != -- ]; do cases="$cases $1"; shift; done
http=$2 rpc=$3 serf=$4 listen=$5

# A clock that is cut short, 30 s, would kill vLLM while it finishes what it has begun.
cat >"$work/nomad/agent.json" <<J
{"name": "bench", "disable_update_check": true, "bind_addr": "127.0.0.1", "data_dir": "$data",
 "ports": {"http": $http, "rpc": $rpc, "serf": $serf},
 "client": {"max_kill_timeout": "5m", "options": {"driver.raw_exec.enable": "1", "fingerprint.denylist": "env_aws,env_gce,env_azure,env_digitalocean"}}}
J
nomad agent -dev -config "$work/nomad/agent.json" >"$work/nomad/log" 2>&1 &
agent=$!
export LLMOPS_HOME="$work/home" LLMOPS_FLEET="$work/fleet.yaml" NOMAD_ADDR="http://127.0.0.1:$http"
trap '"$work/llmops" down --yes >/dev/null 2>&1 || true; kill $agent 2>/dev/null; wait $agent 2>/dev/null || true; rm -rf "$data"' EXIT
until nomad node status 2>/dev/null | grep -q ready; do sleep 1; done

cat >"$work/fleet.yaml" <<Y
apiVersion: llmops/v1
kind: Fleet
scheduler: nomad
nomad:
  address: http://127.0.0.1:$http
  driver: raw_exec
  engines:
    vllm: {driver: raw_exec, program: $env/bin/vllm, vars: {cpu: 500, memory: 4096}}
Y

# model CASE QUANTISE ENGINE
model() {
  cat >"$work/$1.yaml" <<Y
apiVersion: llmops/v1
kind: Model
name: freight-$1
first: parent
source: $root/examples/freight/weights
engine:
  kind: vllm
  release: 0.32.0
  max_model_len: 2048
  max_num_seqs: 8
  max_num_batched_tokens: 2048
  drain: 30s
  env: {OMP_NUM_THREADS: 1, VLLM_CPU_OMP_THREADS_BIND: nobind, VLLM_CPU_KVCACHE_SPACE: 1, VLLM_NO_USAGE_STATS: 1, HF_HUB_OFFLINE: 1, NO_COLOR: 1}
  $3
quantise: {scheme: $2}
placement: {gpu: cpu}
traffic: {rate: 4/s, input: 64, output: 12, replay: $work/traffic.jsonl}
slo: {ttft: 20s, tpot: 2s, error_rate: 20%, refusal_rate: 20%} # so that a busy machine is no reason to refuse
eval:
  suites: [{name: freight, items: $root/examples/freight/evals/freight.jsonl, margin: 15pt, limit: 60}]
  text: $root/examples/freight/evals/perplexity.jsonl
  perplexity: 1.02
  canaries: $root/examples/freight/evals/canaries.jsonl
shadow: {share: 50%, for: 5s}
canary: {steps: [{weight: 50%, bake: 10s}], max: 20x, rollback_on: [errors, refusals]}
Y
}
# A fifth of the example's rate: two vLLMs share this machine.
"$env/bin/python" - examples/freight/traffic.jsonl "$work/traffic.jsonl" <<'P'
import json, sys
out = open(sys.argv[2], "w")
for n, line in enumerate(open(sys.argv[1])):
    if n % 5 == 0:
        out.write(line)
P

# verdicts CASE: what the report says of each stage and part.
verdicts() { grep -hE '^\| .*\| (pass|fail|inconclusive) \|' "$work"/home/reports/freight-"$1"-*/report.md; }

# alone is the run without a cluster: vLLM is what is on PATH.
alone() (
  unset LLMOPS_FLEET
  export PATH="$env/bin:$PATH"
  model local fp8-dynamic ""
  sed -i 's/, replay: .*}/}/' "$work/local.yaml"
  nice "$work/llmops" onboard --listen 127.0.0.1:$listen --until eval "$work/local.yaml" || { echo "FAIL local: onboard ended with $?"; return 1; }
  "$work/llmops" status
  "$work/llmops" down
)

status=0
for c in $cases; do
  case $c in
  fp8-dynamic) model "$c" fp8-dynamic "" ;;
  speculative) model "$c" none "speculative: {method: ngram, tokens: 3, max_batch: 4}" ;;
  local) alone || status=1; continue ;;
  *) echo "$c is no case" >&2; exit 2 ;;
  esac
  began=$(date +%s)
  if nice "$work/llmops" onboard --listen 127.0.0.1:$listen "$work/$c.yaml"; then
    echo "ok   $c: live after $(($(date +%s) - began)) s"
  else
    echo "FAIL $c: onboard ended with $?"; status=1
  fi
  "$work/llmops" status
  curl -sS "http://127.0.0.1:$listen/v1/chat/completions" -H 'Content-Type: application/json' \
    -d "{\"model\": \"freight-$c\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}], \"max_tokens\": 4}" || status=1
  echo
  "$work/llmops" rollback "freight-$c" --yes || { echo "FAIL $c: rollback"; status=1; }
  "$work/llmops" status
  began=$(date +%s)
  "$work/llmops" down || status=1
  echo "down after $(($(date +%s) - began)) s"
  verdicts "$c"
done
pgrep -f "$env/bin/vllm serve" >/dev/null && { echo "FAIL a vLLM is left"; status=1; }
exit $status
