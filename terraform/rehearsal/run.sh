#!/bin/sh
# docs/deploy.md without the cloud: a Nomad server and a client run from the contract's
# configurations, each in a network namespace without a way out, with TLS and ACLs; a
# model goes from its source to live traffic there, and back. Needs root, iproute2, jq,
# curl, terraform, nomad and llmops.
#
#   sh terraform/rehearsal/run.sh examples/freight/quick.yaml
set -eu
here=$(cd "$(dirname "$0")" && pwd)
spec=$(realpath "${1:?usage: run.sh MODEL.YAML}")
for tool in ip unshare jq curl terraform nomad llmops; do
  command -v "$tool" >/dev/null || { echo "$tool is not on PATH" >&2; exit 2; }
done
alias=$(sed -n 's/^name: *\([a-z0-9.-]*\).*/\1/p' "$spec")
work=$(mktemp -d)
server=llmops-s-$$ client=llmops-c-$$
mounts= # folders that were not there before
pids=

finish() {
  status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then tail -n 5 "$work"/*.log >&2 || true; fi
  if [ -s "$work/token.json" ]; then inside llmops down --yes >/dev/null 2>&1 || true; fi
  for p in $pids; do kill -INT "$p" 2>/dev/null || true; done
  for p in $pids; do wait "$p" 2>/dev/null || true; done
  ip netns del "$server" 2>/dev/null || true
  ip netns del "$client" 2>/dev/null || true
  for m in $mounts; do rmdir -p "$m" 2>/dev/null || true; done
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

step() { printf '\n== %s\n' "$*"; }
inside() { ip netns exec "$client" "$@"; } # the network that the operator is in

export LLMOPS_HOME="$work/home" CHECKPOINT_DISABLE=1
cp -r "$here/../contract" "$work/contract"
mkdir "$work/infra" && cp "$here/main.tf" "$work/infra/"
cd "$work"

step plan and apply
terraform -chdir=infra init -input=false >/dev/null
llmops fleet plan infra
llmops fleet apply infra --yes

step certificates
mkdir tls && cd tls
nomad tls ca create
nomad tls cert create -server -region prod -additional-ipaddress 10.9.0.2
nomad tls cert create -client -region prod
nomad tls cert create -cli -region prod
cd ..

step a closed network, a server and a client in it
ip netns add "$server" && ip netns add "$client"
ip link add rehearse netns "$server" type veth peer name rehearse netns "$client"
ip -n "$server" addr add 10.9.0.2/24 dev rehearse
ip -n "$client" addr add 10.9.0.3/24 dev rehearse
for n in "$server" "$client"; do ip -n "$n" link set lo up; ip -n "$n" link set rehearse up; done
for m in /etc/nomad.d /opt/nomad /var/lib/llmops/models; do
  [ -d "$m" ] || { mkdir -p "$m"; mounts="$mounts $m"; }
done
agent() { # ROLE NAMESPACE
  mkdir -p "$1/etc/tls" "$1/opt/data" "$1/opt/plugins"
  terraform -chdir=infra output -raw "$1" >"$1/etc/nomad.hcl"
  cp tls/nomad-agent-ca.pem "$1/etc/tls/ca.pem"
  cp "tls/prod-$1-nomad.pem" "$1/etc/tls/agent.pem"
  cp "tls/prod-$1-nomad-key.pem" "$1/etc/tls/agent-key.pem"
  ip netns exec "$2" unshare -m sh -c "
    mount --bind '$work/$1/etc' /etc/nomad.d && mount --bind '$work/$1/opt' /opt/nomad &&
    exec nomad agent -config /etc/nomad.d/nomad.hcl" >"$1.log" 2>&1 &
  pids="$pids $!"
}
agent server "$server"
agent client "$client"

step access control
export NOMAD_ADDR=https://10.9.0.2:4646 NOMAD_REGION=prod NOMAD_CACERT="$work/tls/nomad-agent-ca.pem"
export NOMAD_CLIENT_CERT="$work/tls/prod-cli-nomad.pem" NOMAD_CLIENT_KEY="$work/tls/prod-cli-nomad-key.pem"
tries=0
until inside nomad acl bootstrap -json >bootstrap.json 2>bootstrap.log; do
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || { cat bootstrap.log >&2; exit 1; }
  sleep 1
done
NOMAD_TOKEN=$(jq -r .SecretID bootstrap.json) && export NOMAD_TOKEN
inside nomad acl policy apply -description llmops llmops contract/llmops.policy.hcl
inside nomad acl policy apply -namespace default -job router llmops-router contract/router.policy.hcl
inside nomad acl token create -name llmops -policy llmops -json >token.json
NOMAD_TOKEN=$(jq -r .SecretID token.json) && export NOMAD_TOKEN

step the fleet
cat >prod.yaml <<END
apiVersion: llmops/v1
kind: Fleet
scheduler: nomad
nomad:
  address: https://10.9.0.2:4646
  region: prod
  ca_cert: tls/nomad-agent-ca.pem
  client_cert: tls/prod-cli-nomad.pem
  client_key: tls/prod-cli-nomad-key.pem
  bin: $(command -v llmops)
  driver: raw_exec
  pools: {"": interactive, interactive: interactive}
END
export LLMOPS_FLEET="$work/prod.yaml"
tries=0
until inside llmops fleet status infra | tee status.log | grep -q '^prod-interactive-az1-01 .* ready '; do
  tries=$((tries + 1))
  [ "$tries" -lt 30 ] || { cat status.log >&2; exit 1; }
  sleep 1
done
cat status.log

step from source to live traffic
inside llmops onboard --listen 10.9.0.3:8080 "$spec"
inside llmops status
inside curl --fail --silent --show-error http://10.9.0.3:8080/v1/chat/completions -H 'content-type: application/json' \
  -d "{\"model\": \"$alias\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}], \"max_tokens\": 4}"
echo

step the node that works is not taken away
sed -i 's/interactive = { class/other = { class/' infra/main.tf
inside llmops fleet plan infra
if inside llmops fleet apply infra --yes; then
  echo "a node with replicas was let go" >&2
  exit 1
elif [ $? -ne 3 ]; then
  exit 1
fi

step and back
inside llmops rollback "$alias" --yes
