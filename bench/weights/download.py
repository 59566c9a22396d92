"""Compares downloads of one repository from a server on this machine: llmops (every
byte verified), the same ranges with nothing verified, curl (a connection a file, nothing
verified) and huggingface_hub over HTTP (sizes verified). Each into an empty folder, in turn, several times."""
import json, os, pathlib, shutil, statistics, struct, subprocess, sys, time

here, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
size, shards, rounds = int(sys.argv[3]) << 20, 4, int(sys.argv[4])
delay, rate = sys.argv[5], sys.argv[6]
src, port = work / "source", 18460
if not (src / "done").exists():
    shutil.rmtree(src, ignore_errors=True)
    src.mkdir(parents=True)
    weight_map = {}
    for i in range(shards):
        name, n = f"model-{i + 1:05}-of-{shards:05}.safetensors", size // shards
        head = json.dumps({f"t{i}": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
        with open(src / name, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            for _ in range(n >> 20):
                f.write(os.urandom(1 << 20))
        weight_map[f"t{i}"] = name
    (src / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    (src / "config.json").write_text((here / "../../examples/freight/weights/config.json").read_text())
    (src / "done").write_text("")
files = [p.name for p in src.iterdir() if p.name != "done"]
(src / "done").rename(work / "done")
server = subprocess.Popen([here / ".venv/bin/hubserver", "--dir", src, "--listen", f"127.0.0.1:{port}", "--delay", delay, "--rate", rate])
env = dict(os.environ, HF_ENDPOINT=f"http://127.0.0.1:{port}", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
commit = "0123456789abcdef0123456789abcdef01234567"


def llmops(out):
    subprocess.run([here / ".venv/bin/llmops", "download", "hf://org/model", "--out", out / "snapshots"], env=dict(env, HF_HOME=out), check=True, capture_output=True)


def url(f):
    return f"http://127.0.0.1:{port}/org/model/resolve/{commit}/{f}"


def unverified(out):
    subprocess.run([here / ".venv/bin/unverified", "--out", out, *map(url, files)], check=True)


def curl(out):
    urls = []
    for f in files:
        urls += ["-o", out / f, url(f)]
    subprocess.run(["curl", "-sSfL", "--no-progress-meter", "--parallel", "--parallel-max", "8", *urls], check=True)


def hub(out):
    code = "from huggingface_hub import snapshot_download; snapshot_download('org/model')"
    subprocess.run([here / ".venv/bin/python", "-c", code], env=dict(env, HF_HOME=out), check=True, capture_output=True)


try:
    for _ in range(1200):
        if subprocess.run(["curl", "-sf", f"http://127.0.0.1:{port}/api/models/org/model"], capture_output=True).returncode == 0:
            break
        time.sleep(0.1)
    took = {f.__name__: [] for f in (llmops, unverified, curl, hub)}
    cpu = {name: [] for name in took}
    for _ in range(rounds):
        for f in (llmops, unverified, curl, hub):
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            subprocess.run(["sync"])
            was, began = os.times(), time.monotonic()
            f(out)
            took[f.__name__].append(time.monotonic() - began)
            now = os.times()
            cpu[f.__name__].append(now.children_user + now.children_system - was.children_user - was.children_system)
    # Killed at half, it fetches again no more than what was on its way.
    out = work / "out"
    shutil.rmtree(out)
    out.mkdir()
    sent = lambda: int(subprocess.run(["curl", "-sf", f"http://127.0.0.2:{port + 1}/sent"], check=True, capture_output=True).stdout)
    before = sent()
    half = subprocess.Popen([here / ".venv/bin/llmops", "download", "hf://org/model", "--out", out / "snapshots"], env=dict(env, HF_HOME=out), stderr=subprocess.DEVNULL)
    while sent() - before < size / 2 and half.poll() is None:
        time.sleep(0.02)
    half.kill()
    half.wait()
    weights = sum((src / f).stat().st_size for f in files if f.endswith(".safetensors"))
    time.sleep(0.5)  # until the server has noticed
    first, arrived = sent() - before, sum(p.stat().st_blocks * 512 for p in out.rglob("blobs/*") if p.stat().st_size > 1 << 20)
    llmops(out)
    second = sent() - before - first
    # What llmops has left must be whole to Python, without the Hub.
    check = "from huggingface_hub import snapshot_download; import os; p = snapshot_download('org/model', local_files_only=True); print(len(os.listdir(p)))"
    seen = subprocess.run([here / ".venv/bin/python", "-c", check], env=dict(env, HF_HOME=out, HF_HUB_OFFLINE="1"), check=True, capture_output=True, text=True)
    assert int(seen.stdout) == len(files), seen.stdout
    # And what Python has left is used by llmops.
    shutil.rmtree(out)
    out.mkdir()
    hub(out)
    subprocess.run([here / ".venv/bin/llmops", "download", "hf://org/model", "--out", out / "snapshots"], env=dict(env, HF_HOME=out, HF_HUB_OFFLINE=""), check=True, capture_output=True)
    print(f"killed at half: of what had arrived {100 * (second - (weights - arrived)) / size:.2f}% was fetched again; with what was in sockets {100 * (first + second - weights) / size:.2f}%")
    base = statistics.median(took["llmops"])
    print(f"{size >> 20} MiB in {shards} files, delay {delay}, {rate} MiB/s a connection, {rounds} rounds; the cache of each is read by the other")
    for name in took:
        m = statistics.median(took[name])
        print(f"{name:10} {m:6.2f} s  {size / m / 2**20:6.0f} MiB/s  {statistics.median(cpu[name]):6.2f} CPU-s  llmops is {base / m:.2f} of it")
finally:
    server.kill()
    (work / "done").rename(src / "done")
