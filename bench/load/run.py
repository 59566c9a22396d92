"""Measures load generators beside each other: ours, `vllm bench serve`, guidellm, aiperf
and inference-perf, each on one core, against a server on another that streams 64 chunks
an answer, the first after 50 ms and then one each 10 ms, and stamps each.

    python3 bench/load/run.py [--fifo] [--tools llmops,vllm,...] [--rounds 3] [--streams 10000]

Each tool is first asked for more and more requests a second, at equal distances, until it
sends less than 98 % of them by the server's count: the rate before is its saturation. Then
it is measured at a quarter, half and four fifths of that, --rounds times. What is said of
each share is the median of the rounds: how many requests left; how far its own TTFT and
TPOT are from the server's stamps, at the median and p99 of the two distributions; and its
CPU time per chunk, all its processes, less that of a run of two requests, which is what it
costs to start. Prints a line of JSON a run and a table at the end. Wall-clock figures need
a quiet machine, CPU time does not.

The peers are looked for in .venv-NAME beside this file (vllm: bench/engines/.venv);
those that are missing are named and left out:

    python3 -m venv bench/load/.venv-guidellm && bench/load/.venv-guidellm/bin/pip install guidellm
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOKENS, FIRST, GAP, SECONDS = 64, 50, 10, 6
SHARES = (0.25, 0.5, 0.8)
PORT = 18811
URL = f"http://127.0.0.1:{PORT}"


prefix = []  # before every command: --fifo
# aiperf is a dozen processes that watch each other, of which one that does not let the
# others run is given up: a high priority, and no absolute one.
polite = {"aiperf": ["nice", "-n", "-20"]}


def get(path):
    with urllib.request.urlopen(URL + path) as r:
        return json.load(r)


def ahead(name):
    return polite.get(name, prefix) if prefix else []


def quantile(values, q):
    values = sorted(values)
    return values[int(q * (len(values) - 1))] if values else float("nan")


def program(name):
    path = (ROOT / "bench/engines/.venv/bin/vllm") if name == "vllm" else HERE / f".venv-{name}/bin/{name}"
    return path if path.exists() else None


def vllm(path, rate, n, work):
    out = work / "vllm.json"
    argv = [path, "bench", "serve", "--backend", "openai-chat", "--base-url", URL, "--endpoint", "/v1/chat/completions", "--model", "m",
            "--tokenizer", work / "tokenizer", "--dataset-name", "random", "--random-input-len", "16", "--random-output-len", str(TOKENS),
            "--num-prompts", str(n), "--request-rate", str(rate), "--burstiness", "1000000", "--save-result", "--save-detailed", "--result-filename", out.name,
            "--result-dir", work, "--disable-tqdm"]

    def read():
        d = json.loads(out.read_text())
        ok = [i for i, e in enumerate(d["errors"]) if not e]
        return [d["ttfts"][i] for i in ok], [sum(d["itls"][i]) / (d["output_lens"][i] - 1) for i in ok]

    return argv, read


def guidellm(path, rate, n, work):
    out = work / "guidellm.json"
    argv = [path, "run", "--backend", f"kind=openai_http,target={URL},model=m", "--tokenizer", f"kind=hf_auto,model={work / 'tokenizer'}",
            "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}", "--profile", f"kind=constant,rate={rate}",
            "--constraint", f"kind=max_requests,count={n}", "--output", f"kind=json,path={out}", "--disable-console"]

    def read():
        ttft, tpot = [], []
        for r in json.loads(out.read_text())["benchmarks"][0]["requests"]["successful"]:
            t = r["info"]["timings"]
            ttft.append(t["first_token_iteration"] - t["request_start"])
            tpot.append((t["last_token_iteration"] - t["first_token_iteration"]) / (TOKENS - 1))
        return ttft, tpot

    return argv, read


def aiperf(path, rate, n, work):
    out = work / "aiperf"
    shutil.rmtree(out, ignore_errors=True)
    argv = [path, "profile", "--model", "m", "--url", URL, "--endpoint-type", "chat", "--streaming", "--tokenizer", "./tokenizer",
            "--isl", "16", "--osl", str(TOKENS), "--request-rate", str(rate), "--request-rate-mode", "constant", "--request-count", str(n), "--ui", "none", "--artifact-dir", out]

    def read():
        ttft, tpot = [], []
        for line in (out / "profile_export.jsonl").read_text().splitlines():
            m = json.loads(line)["metrics"]
            if "time_to_first_token" in m:
                scale = {"ms": 1e-3, "s": 1, "ns": 1e-9}[m["time_to_first_token"]["unit"]]
                ttft.append(m["time_to_first_token"]["value"] * scale)
                # By its own tokens, which it counts with a tokenizer; of chunks here.
                last = m["request_latency"]["value"] * scale
                tpot.append((last - ttft[-1]) / (TOKENS - 1))
        return ttft, tpot

    return argv, read


def inference_perf(path, rate, n, work):
    out = work / "inference-perf"
    shutil.rmtree(out, ignore_errors=True)
    config = work / "inference-perf.yaml"
    config.write_text(json.dumps({
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shared_prefix", "shared_prefix": {"num_groups": 10, "num_prompts_per_group": 20, "system_prompt_len": 8, "question_len": 8, "output_len": TOKENS}},
        "load": {"type": "constant", "stages": [{"rate": rate, "duration": max(1, round(n / rate))}], "num_workers": 1, "worker_max_concurrency": 1000},
        "server": {"type": "vllm", "model_name": "m", "base_url": URL, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(work / "tokenizer")},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": str(out)}}}))

    def read():
        ttft, tpot = [], []
        for r in json.loads((out / "per_request_lifecycle_metrics.json").read_text()):
            info = r["info"]
            at = info.get("output_token_times") or (info.get("response_metrics") or {}).get("output_token_times") or []
            if not r.get("error") and at:
                ttft.append(at[0] - r["start_time"])
                tpot.append((at[-1] - at[0]) / (TOKENS - 1))
        return ttft, tpot

    return [path, "-c", config], read


TOOLS = {"vllm": vllm, "guidellm": guidellm, "aiperf": aiperf, "inference-perf": inference_perf}


def spend(name, argv, work):
    """Runs argv on the client's core and gives the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = dict(os.environ, HF_HUB_DISABLE_TELEMETRY="1", VLLM_NO_USAGE_STATS="1", TRANSFORMERS_VERBOSITY="error")
    p = subprocess.run([*ahead(name), "taskset", "-c", "1", *map(str, argv)], cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        raise RuntimeError(f"exit {p.returncode}: {p.stdout[-600:].decode(errors='replace')}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(name, rate, start, work):
    n = max(40, round(rate * SECONDS))
    argv, read = TOOLS[name](program(name), rate, n, work)
    get("/stamps")
    cpu = spend(name, argv, work)
    answers = [a for a in get("/stamps")["answers"].values() if len(a["chunks"] or []) == TOKENS]
    ttft, tpot = read()
    came = sorted(a["came"] for a in answers)
    true_ttft = [(a["chunks"][0] - a["came"]) / 1e9 for a in answers]
    true_tpot = [(a["chunks"][-1] - a["chunks"][0]) / 1e9 / (TOKENS - 1) for a in answers]
    chunks = TOKENS * len(answers)
    off = lambda got, true, q: round(1e3 * (quantile(got, q) - quantile(true, q)), 3)
    return {"tool": name, "asked_rate": rate, "rate": round((len(came) - 1) / ((came[-1] - came[0]) / 1e9), 2), "requests": len(answers),
            "cpu_us_per_chunk": round(1e6 * max(0, cpu - start) / chunks, 1),
            "ttft_off_ms": [off(ttft, true_ttft, 0.5), off(ttft, true_ttft, 0.99)],
            "tpot_off_ms": [off(tpot, true_tpot, 0.5), off(tpot, true_tpot, 0.99)]}


def ours(rate, work):
    p = subprocess.run([*prefix, "taskset", "-c", "1", work / "load", "send", "-to", URL, "-rate", str(rate), "-even", "-for", f"{SECONDS}s", "-tokens", str(TOKENS), "-results", work / "results.jsonl"],
                       stdout=subprocess.PIPE, check=True, env=dict(os.environ, GOMAXPROCS="1"))
    r = json.loads(p.stdout)
    return {"tool": "llmops", "asked_rate": rate, "rate": round(r["rate"], 2), "requests": r["requests"], "cpu_us_per_chunk": round(r["cpu_us_per_chunk"], 1),
            "ttft_off_ms": [round(r["ttft_error_ms"]["p50"], 3), round(r["ttft_error_ms"]["p99"], 3)],
            "tpot_off_ms": [round(r["tpot_error_ms"]["p50"], 3), round(r["tpot_error_ms"]["p99"], 3)],
            "chunk_off_ms": [round(r["chunk_error_ms"]["p50"], 3), round(r["chunk_error_ms"]["p99"], 3)]}


def serve(work, *argv):
    s = subprocess.Popen([*prefix, "taskset", "-c", "0", work / "load", "serve", "-listen", f"127.0.0.1:{PORT}", *argv], env=dict(os.environ, GOMAXPROCS="1"))
    while True:
        try:
            get("/stamps")
            return s
        except OSError:
            time.sleep(0.1)


def median(rows):
    """Each figure's median over the rounds."""
    out = dict(rows[0], rounds=len(rows))
    for k, v in rows[0].items():
        if isinstance(v, list):
            out[k] = [sorted(r[k][i] for r in rows)[len(rows) // 2] for i in range(len(v))]
        elif isinstance(v, float):
            out[k] = sorted(r[k] for r in rows)[len(rows) // 2]
    return out


def saturation(run, rates):
    """The highest rate of which at least 98 % is sent, of those asked for in turn."""
    best = 0
    for r in rates:
        try:
            row = run(r)
        except FAILED as e:
            print(f"at {r}/s: {type(e).__name__}: {e}", file=sys.stderr)
            break
        print(json.dumps(row), flush=True)
        if row["rate"] < 0.98 * r:
            break
        best = r
    return best


FAILED = (RuntimeError, subprocess.SubprocessError, OSError, KeyError, ValueError, IndexError)


def held(streams, work):
    """What ours needs for so many streams of a token a second."""
    server = serve(work, "-first", "1s", "-gap", "1s")
    try:
        p = subprocess.run([*prefix, "taskset", "-c", "1", work / "load", "send", "-to", URL, "-streams", str(streams), "-for", "30s", "-tokens", "30"],
                           stdout=subprocess.PIPE, check=True, env=dict(os.environ, GOMAXPROCS="1"))
        print(p.stdout.decode().strip(), flush=True)
    finally:
        server.terminate()
        server.wait()


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--rates", default="20,40,80,120,160,240,320,480", help="in turn, until a tool no longer keeps up")
    ask.add_argument("--ours", default="400,600,700,800,1000,1200,1500")
    ask.add_argument("--tools", default="llmops,vllm,guidellm,aiperf,inference-perf")
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--streams", type=int, default=10000, help="how many streams ours holds at last; 0: leave that out")
    ask.add_argument("--fifo", action="store_true", help="run server and generators before everything else on the machine (chrt -f 1, as root): on a busy one nothing else makes wall-clock figures mean anything")
    o = ask.parse_args()
    prefix.extend(["chrt", "-f", "1"] if o.fifo else [])
    tools = [t for t in o.tools.split(",") if t]
    for t in [t for t in tools if t != "llmops" and not program(t)]:
        print(f"SKIPPED: {t} is not installed", file=sys.stderr)
        tools.remove(t)
    table = []
    with tempfile.TemporaryDirectory() as d:
        work = pathlib.Path(d)
        shutil.copytree(ROOT / "examples/freight/weights", work / "tokenizer")
        subprocess.run(["go", "build", "-o", work / "load", "./bench/load"], cwd=ROOT, check=True)
        server = serve(work, "-first", f"{FIRST}ms", "-gap", f"{GAP}ms", "-tokens", str(TOKENS))
        try:
            for t in tools:
                if t == "llmops":
                    run, rates = (lambda r: ours(r, work)), o.ours
                else:
                    try:
                        # The first start is from a cold disk.
                        start = min(spend(t, TOOLS[t](program(t), 5.0, 2, work)[0], work) for _ in range(3))
                    except FAILED as e:
                        print(f"SKIPPED: {t}: {e}", file=sys.stderr)
                        continue
                    run, rates = (lambda r: measure(t, r, start, work)), o.rates
                most = saturation(run, [float(r) for r in rates.split(",")])
                for share in SHARES if most else ():
                    rows = []
                    for _ in range(o.rounds):
                        try:
                            rows.append(run(most * share))
                        except FAILED as e:
                            print(f"{t} at {share:.0%}: {type(e).__name__}: {e}", file=sys.stderr)
                    if rows:
                        table.append(dict(median(rows), saturation=most, share=share))
                        print(json.dumps(table[-1]), flush=True)
        finally:
            server.terminate()
            server.wait()
        if o.streams and "llmops" in tools:
            held(o.streams, work)
    print("\n| generator | saturation/s | share | asked/s | sent/s | CPU µs a chunk | TTFT off, p50 / p99 ms | TPOT off, p50 / p99 ms |\n|---|---|---|---|---|---|---|---|")
    for r in table:
        print(f"| {r['tool']} | {r['saturation']:g} | {r['share']:.0%} | {r['asked_rate']:g} | {r['rate']:g} | {r['cpu_us_per_chunk']:g} | {r['ttft_off_ms'][0]:g} / {r['ttft_off_ms'][1]:g} | {r['tpot_off_ms'][0]:g} / {r['tpot_off_ms'][1]:g} |")


if __name__ == "__main__":
    main()
