"""Compares quantising on a processor. Each line that is printed is one measurement; a
part that cannot be measured here says so.

equal   every tensor and scale of every data-free scheme, byte for byte, against
        llm-compressor's model_free_ptq, for bf16, f16 and f32, and blocks of E4M3
floor   wall over reading all and writing half of the same files, a kernel at a time
peer    time and memory of model_free_ptq for the same files
logits  the result in transformers with compressed-tensors and in the embedded engine,
        against the source
data    GPTQ, and fp8-static with measured scales, by llm-compressor through llmops, in
        the embedded engine
cgroup  16 GiB in a control group of 1 GiB; a quarter of both without the disk for it"""
import json, os, pathlib, shutil, statistics, struct, subprocess, sys, time, urllib.request

here, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
mib, rounds, parts = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:] or ["equal", "floor", "peer", "logits", "data", "cgroup"]
llmops, floor = here / ".venv/bin/llmops", here / ".venv/bin/quantisefloor"
presets = {"fp8-dynamic": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK", "int8": "W8A8", "int8-weight": "W8A16", "int4": "W4A16"}
kept = ["lm_head", "re:.*embed_tokens"]
failed = []


def say(*words):
    print(*words, flush=True)


def config(hidden, inner, layers, dtype="bfloat16", vocab=512, heads=4, kv=2, **more):
    return json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
                       "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, "torch_dtype": dtype,
                       "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512, **more})


def layer(l, hidden, inner, kv):
    p = f"model.layers.{l}."
    return {p + "self_attn.q_proj": (hidden, hidden), p + "self_attn.k_proj": (kv, hidden), p + "self_attn.v_proj": (kv, hidden), p + "self_attn.o_proj": (hidden, hidden),
            p + "mlp.gate_proj": (inner, hidden), p + "mlp.up_proj": (inner, hidden), p + "mlp.down_proj": (hidden, inner)}


# A process begins with the peak of the one that it was forked from, so a small one forks.
measure = """import json, os, sys, time
began = time.monotonic()
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))"""


def run(argv, **kw):
    """Runs a command and returns wall s, CPU s, peak MiB."""
    p = subprocess.run([sys.executable, "-IS", "-c", measure, *map(str, argv)], capture_output=True, **kw)
    code, *took = json.loads(p.stdout)
    if code:
        raise SystemExit(f"{' '.join(map(str, argv))}: exit {code}: {p.stderr.decode()[-2000:]}")
    return took


def clear(*dirs):
    for d in dirs:
        shutil.rmtree(d, ignore_errors=True)


# ---- equal


def nasty(torch, rows, cols, dtype):
    """Rows that differ in size by orders of magnitude, and what rounding trips over."""
    x = torch.randn(rows, cols) * 0.05 * torch.exp(torch.randn(rows, 1) * 2)
    x[1] = 0
    x[2, 3] = -0.0
    x[3] *= 1e-6
    x[4] = 1e-30
    x[5] = 1e-38 * torch.randn(cols)
    if dtype != torch.float16:
        x[6] = 1e37 * torch.randn(cols)
    x[7] = torch.arange(cols) % 449 - 224  # ties
    return x.to(dtype).contiguous()


def same(torch, name, a, b):
    from safetensors.torch import load_file
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    wrong = sorted(set(x) ^ set(y))
    for k in set(x) & set(y):
        if x[k].dtype != y[k].dtype or x[k].shape != y[k].shape or not torch.equal(x[k].contiguous().view(torch.uint8), y[k].contiguous().view(torch.uint8)):
            wrong.append(k)
    if wrong:
        failed.append(name)
    say(f"equal    {name:34} {len(x)} tensors, " + ("byte for byte" if not wrong else f"{len(wrong)} DIFFER: {wrong[:5]}"))


def equal():
    import torch
    from compressed_tensors.entrypoints.convert import FP8BlockDequantizer
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import model_free_ptq
    from safetensors.torch import save_file

    src, ours, theirs = work / "small", work / "ours", work / "theirs"
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        torch.manual_seed(1)
        clear(src)
        src.mkdir()
        t = {"model.embed_tokens.weight": nasty(torch, 512, 256, dtype), "lm_head.weight": nasty(torch, 512, 256, dtype), "model.norm.weight": torch.ones(256, dtype=dtype)}
        for l in range(2):
            for name, (r, c) in layer(l, 256, 384, 128).items():
                t[name + ".weight"] = nasty(torch, r, c, dtype)
        t["model.layers.0.self_attn.k_proj.weight"].zero_()
        save_file(t, src / "model.safetensors", metadata={"format": "pt"})
        (src / "config.json").write_text(config(256, 384, 2, str(dtype).split(".")[1]))
        for scheme, preset in presets.items():
            clear(ours, theirs)
            run([llmops, "quantise", src, "--scheme", scheme, "--out", ours])
            model_free_ptq(str(src), str(theirs), scheme=preset, ignore=kept, device="cpu")
            same(torch, f"{scheme} of {str(dtype).split('.')[1]}", ours, theirs)
        whole = {"fp8-static": QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=8, type="float", strategy="tensor"), input_activations=QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)),
                 "int4-tensor": QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, type="int", strategy="tensor"))}
        for scheme, preset in whole.items():
            clear(ours, theirs)
            more = []
            if scheme == "fp8-static":
                scales = work / "scales.json"
                scales.write_text(json.dumps({"activations": {n: 0.5 for l in range(2) for n in layer(l, 256, 384, 128)}}))
                more = ["--scales", scales]
            run([llmops, "quantise", src, "--scheme", scheme, "--out", ours, *more])
            model_free_ptq(str(src), str(theirs), scheme=preset, ignore=kept, device="cpu")
            if scheme == "fp8-static":  # theirs has no way to take scales of activations
                from safetensors.torch import load_file
                x = load_file(ours / "model.safetensors")
                save_file({k: v for k, v in x.items() if not k.endswith("input_scale")}, ours / "model.safetensors")
            same(torch, f"{scheme} of {str(dtype).split('.')[1]}", ours, theirs)
    # A source in blocks of E4M3, as DeepSeek publishes them.
    torch.manual_seed(2)
    clear(src)
    src.mkdir()
    t = {}
    for name, (r, c) in layer(0, 256, 384, 128).items():
        t[name + ".weight"] = (torch.randn(r, c) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        t[name + ".weight_scale_inv"] = torch.rand(-(-r // 128), -(-c // 128)) * 1e-3
    save_file(t, src / "model.safetensors", metadata={"format": "pt"})
    quant = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (src / "config.json").write_text(config(256, 384, 1, quantization_config=quant))
    for scheme, preset in presets.items():
        clear(ours, theirs)
        run([llmops, "quantise", src, "--scheme", scheme, "--out", ours])
        model_free_ptq(str(src), str(theirs), scheme=preset, ignore=kept, device="cpu", converter=FP8BlockDequantizer(targets=["re:.*_proj$"]))
        same(torch, f"{scheme} of E4M3 in blocks", ours, theirs)


# ---- floor, peer, cgroup


def big(path, mib, shards):
    """Layers of the shape of Llama-3-8B, Gaussian, of so many MiB at most."""
    if (path / "config.json").exists():
        return
    import torch
    torch.manual_seed(0)
    clear(path)
    path.mkdir()
    hidden, inner, kv = 4096, 14336, 1024
    noise = (torch.randn(32 << 20) * 0.02).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    tensors, layers, total = [], 0, 0
    while total + sum(2 * r * c for r, c in layer(0, hidden, inner, kv).values()) <= mib << 20:
        for name, (r, c) in layer(layers, hidden, inner, kv).items():
            tensors.append((name + ".weight", r, c))
            total += 2 * r * c
        layers += 1
    where, per = {}, -(-len(tensors) // shards)
    for i in range(shards):
        name, head, at = f"model-{i + 1:05}-of-{shards:05}.safetensors", {}, 0
        for n, r, c in tensors[i * per:(i + 1) * per]:
            head[n] = {"dtype": "BF16", "shape": [r, c], "data_offsets": [at, at + 2 * r * c]}
            at, where[n] = at + 2 * r * c, name
        raw = json.dumps(head).encode()
        raw += b" " * (-len(raw) % 8)
        with open(path / name, "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw)
            while at > 0:
                f.write(noise[:min(at, len(noise))])
                at -= len(noise)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    (path / "config.json").write_text(config(hidden, inner, layers, heads=32, kv=8))


def size(path):
    return sum(f.stat().st_size for f in path.glob("*.safetensors"))


def levels():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    out = {"go": "cpu.avx2=off,cpu.avx512f=off"}
    if "avx2" in flags:
        out = {"avx2": "cpu.avx512f=off", **out}
    if "avx512bw" in flags:
        return {"avx512": "", **out}
    say("floor    avx512: not measured, this processor has none")
    return out


def floors():
    src = work / f"big-{mib}"
    big(src, mib, 4)
    gib, cores = size(src) / 2**30, os.sched_getaffinity(0)
    places = {"disk": work}
    if shutil.disk_usage("/dev/shm").free > 3 * size(src):
        places["memory"] = pathlib.Path("/dev/shm/llmops-bench-quantise")
    for place, at in places.items():
        at.mkdir(exist_ok=True)
        for n in sorted({1, min(2, len(cores))}):
            pin = dict(preexec_fn=lambda: os.sched_setaffinity(0, sorted(cores)[:n]))
            out = at / "out"
            # Slow, and not what is close: once is enough.
            known = {l: debug for l, debug in levels().items() if l != "go" or n == 1 and at != work or len(places) == 1}
            took = {}
            for r in range(rounds):
                for f in src.glob("*.safetensors"):  # warm
                    subprocess.run(["cat", f], stdout=subprocess.DEVNULL)
                runs = {"floor": ([floor, "--in", src, "--out", out], ""), "floor with digests": ([floor, "--in", src, "--out", out, "--digests"], "")}
                runs |= {l: ([llmops, "quantise", src, "--scheme", "fp8-dynamic", "--out", out], debug) for l, debug in known.items() if l != "go" or r == 0}
                for name, (argv, debug) in runs.items():
                    clear(out)
                    subprocess.run(["sync"])
                    took.setdefault(name, []).append(run(argv, env=dict(os.environ, GODEBUG=debug), **pin))
            clear(out)
            # Ratios of runs that followed each other, so that a busy machine is in both.
            ratio = lambda k, to, i: statistics.median(x[i] / y[i] for x, y in zip(took[k], took[to]))
            for k, v in took.items():
                more = "" if k.startswith("floor") else ", " + ", ".join(f"wall {ratio(k, to, 0):.2f} CPU {ratio(k, to, 1):.2f} of the {to}" for to in ("floor", "floor with digests"))
                say(f"floor    {place}, {n} core{'s' * (n > 1)}, {gib:.2f} GiB: {k:18} {statistics.median(x[0] for x in v):6.2f} s, {statistics.median(x[1] for x in v):6.2f} CPU s{more}")
        if at != work:
            clear(at)


def peer():
    src, out = work / f"big-{mib}", work / "out"
    big(src, mib, 4)
    code = f"from llmcompressor import model_free_ptq; model_free_ptq({str(src)!r}, {str(out)!r}, scheme='FP8_DYNAMIC', ignore={kept!r}, device='cpu')"
    for name, argv in {"model_free_ptq": [sys.executable, "-c", code], "llmops": [llmops, "quantise", src, "--scheme", "fp8-dynamic", "--out", out]}.items():
        clear(out)
        subprocess.run(["sync"])
        wall, cpu, peak = run(argv)
        say(f"peer     {size(src) / 2**30:.2f} GiB fp8-dynamic: {name:15} {wall:7.2f} s, {cpu:7.2f} CPU s, {peak:6.0f} MiB at most")
    clear(out)


def cgroup():
    free, mib, memory = shutil.disk_usage(work).free >> 30, 16384, 1024
    if free < 30:
        say(f"cgroup   16 GiB in 1 GiB: skipped, {free} GiB of free disk, 30 are needed")
        mib, memory = mib // 4, memory // 4
    if free < 10:
        return
    v1, v2 = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
    group = (v1 if (v1 / "memory.limit_in_bytes").exists() else v2) / "llmops-bench-quantise"
    limit, peak = ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if group.parent == v1 else ("memory.max", "memory.peak")
    try:
        group.mkdir(exist_ok=True)
        (group / limit).write_text(str(memory << 20))
    except OSError as e:
        return say(f"cgroup   skipped: no control group to be had: {e}")
    src, out = work / f"big-{mib}", work / "out"
    big(src, mib, 4)
    clear(out)
    try:
        wall, cpu, rss = run(["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", llmops, "quantise", src, "--scheme", "fp8-dynamic", "--memory", f"{memory // 2}MiB", "--out", out])
        say(f"cgroup   {size(src) / 2**30:.2f} GiB in {memory} MiB: {wall:.1f} s, {cpu:.1f} CPU s, {rss:.0f} MiB resident at most, the group {int((group / peak).read_text()) >> 20} MiB with its page cache")
    finally:
        clear(out)
        time.sleep(0.1)  # until the kernel lets go of the group
        group.rmdir()


# ---- logits


def engine(path, prompt):
    """Log probabilities of prompt from the embedded engine."""
    port = 18467
    p = subprocess.Popen([llmops, "engine", "serve", "--model", path, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
                break
            except OSError:
                time.sleep(0.1)
        body = json.dumps({"model": json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"))["data"][0]["id"], "prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 0}).encode()
        r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(r))["choices"][0]["logprobs"]["token_logprobs"][1:len(prompt)]
    finally:
        p.terminate()
        p.wait()


served = """import json, sys
if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    prompts = json.loads(sys.argv[2])
    llm = LLM(model=sys.argv[1], enforce_eager=True, max_model_len=512, dtype="bfloat16")
    out = llm.generate([{"prompt_token_ids": p} for p in prompts], SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0))
    print("ANSWER", json.dumps([[o.prompt_logprobs[i][t].logprob for i, t in enumerate(p) if i] for o, p in zip(out, prompts)]))
"""


def vllm(path, prompts):
    """Log probabilities from vLLM, or why there are none."""
    python, script = here / "../engines/.venv/bin/python", work / "served.py"
    if not python.exists():
        return "not installed: bench/engines installs it"
    script.write_text(served)
    p = subprocess.run([python, script, path, json.dumps(prompts)], env=dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1"), capture_output=True, text=True)
    for line in p.stdout.splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line[7:])
    why = [line.split("Error:", 1)[1].strip() for line in (p.stdout + p.stderr).splitlines() if "RuntimeError:" in line or "ValueError:" in line or "NotImplementedError:" in line]
    return "not supported by this build: " + (why or ["no reason given"])[0].removesuffix(" Reasons:")[:100]


freight = here / "../../examples/freight"


def texts():
    from transformers import AutoTokenizer
    tok = AutoTokenizer.from_pretrained(freight / "weights")
    return [tok(line)["input_ids"][:96] for line in list(open(freight / "traffic.jsonl"))[-8:]]


def off(a, b):
    return statistics.mean(abs(x - y) for p, q in zip(a, b) for x, y in zip(p, q))


def data():
    src, out, scales, ours, prompts = freight / "weights", work / "out", work / "scales.json", work / "engine-scales.json", texts()
    parent = [engine(src, p) for p in prompts]
    with_data = ["--data", freight / "traffic.jsonl", "--python", sys.executable, "--samples", 32, "--length", 128]
    without_python = with_data[:2] + with_data[4:]
    for path, how in (scales, with_data), (ours, without_python):
        with open(path, "w") as f:
            subprocess.run([str(a) for a in [llmops, "quantise", "scales", src, "--kv", *how]], stdout=f, stderr=subprocess.DEVNULL, check=True)
    a, b = json.loads(ours.read_text()), json.loads(scales.read_text())
    apart = lambda pairs: max(abs(x / y - 1) for x, y in pairs)
    say(f"data     scales of the engine to llm-compressor's, at most apart: activations {apart((a['activations'][m], v) for m, v in b['activations'].items()):.2%}, "
        f"caches {apart((a['kv'][m][x], v[x]) for m, v in b['kv'].items() for x in 'kv'):.2%}")
    for name, more in {"int4": ["int4"], "int4 by gptq": ["int4", "--method", "gptq", *with_data], "fp8-dynamic": ["fp8-dynamic"], "fp8-static, fp8 cache": ["fp8-static", "--scales", scales],
                       "the same, engine's scales": ["fp8-static", "--scales", ours]}.items():
        clear(out)
        wall, _, peak = run([llmops, "quantise", src, "--out", out, "--scheme", *more])
        say(f"data     {name:25} to the source in the engine {off([engine(out, p) for p in prompts], parent):.4f} nats; {wall:.1f} s")
    clear(out)


def logits():
    import torch
    from transformers import AutoModelForCausalLM

    src, out, prompts = freight / "weights", work / "out", texts()

    def hf(path):
        m = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        got = []
        for p in prompts:
            with torch.no_grad():
                l = torch.log_softmax(m(torch.tensor([p])).logits[0].float(), -1)
            got.append([l[i, t].item() for i, t in enumerate(p[1:])])
        return got

    parent, ours, theirs = hf(src), [engine(src, p) for p in prompts], vllm(src, prompts)
    n = sum(len(p) for p in parent)
    say(f"logits   freight, {n} log probabilities, mean differences in nats: the source, transformers to engine {off(parent, ours):.4f}")
    say("logits   vLLM in bfloat16: " + (theirs if isinstance(theirs, str) else f"the source, vLLM to engine {off(theirs, ours):.4f}"))
    for scheme in presets:
        clear(out)
        # Blocks of 128 do not divide the heads of this model.
        run([llmops, "quantise", src, "--scheme", scheme, "--out", out] + (["--keep", "re:.*k_proj"] if scheme == "fp8-block" else []))
        t, e = hf(out), [engine(out, p) for p in prompts]
        say(f"logits   {scheme:12} to the source: transformers {off(t, parent):.4f}, engine {off(e, ours):.4f}; transformers to engine {off(t, e):.4f}")
        # Weights alone must come out equal. Activations are rounded to eight bits, where a
        # difference in the last bit of a float may be a whole step, and where engines divide
        # by 127 what compressed-tensors divides by 127.5.
        if off(t, e) > 1e-3 and scheme in ("int8-weight", "int4") or abs(off(t, parent) - off(e, ours)) > 0.1 * off(t, parent):
            failed.append(f"logits of {scheme}")
        if isinstance(theirs, str):
            continue
        v = vllm(out, prompts)
        say(f"logits   {scheme:12} in vLLM: " + (v if isinstance(v, str) else f"to the source {off(v, theirs):.4f}, to engine {off(v, e):.4f}"))
    clear(out)


for part in parts:
    {"equal": equal, "floor": floors, "peer": peer, "logits": logits, "data": data, "cgroup": cgroup}[part]()
if failed:
    raise SystemExit("failed: " + ", ".join(failed))
