"""Calls every endpoint of the embedded engine with the openai package, and its
block events with pyzmq and msgspec, decoded into the types that vLLM publishes."""
import json
import os
import threading
import urllib.error
import urllib.request
from typing import Any

import msgspec
import openai
import zmq

generate, encode = os.environ["LLMOPS_GENERATE"], os.environ["LLMOPS_ENCODE"]
client = openai.OpenAI(base_url=generate + "/v1", api_key="none")
encoder = openai.OpenAI(base_url=encode + "/v1", api_key="none")
DOCUMENT = "Seal AB104422, port of loading Gdansk, gross weight 12450.5 kg."


def check(name, ok, seen=""):
    print(("ok   " if ok else "FAIL ") + "python " + name, "" if ok else seen)
    if not ok:
        raise SystemExit(1)


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def events():
    sub = zmq.Context.instance().socket(zmq.SUB)
    sub.connect(os.environ["LLMOPS_EVENTS"])
    sub.setsockopt_string(zmq.SUBSCRIBE, "kv-events")
    heard = []

    def listen():
        topic, seq, payload = sub.recv_multipart()
        heard.append((topic, int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload, type=KVEventBatch)))

    t = threading.Thread(target=listen, daemon=True)
    t.start()
    for i in range(200):
        client.completions.create(model="freight", prompt="%d " % i * 20, max_tokens=1)
        t.join(0.05)
        if heard:
            break
    check("kv events", heard and isinstance(heard[0][2].events[0], BlockStored) and heard[0][2].events[0].block_size == 16, heard)


def post(url, body):
    req = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(req))


check("models", [m.id for m in client.models.list()] == ["freight"])
messages = [{"role": "user", "content": DOCUMENT + "\nWhat is the port of loading?"}]
r = client.chat.completions.create(model="freight", messages=messages, temperature=0, max_tokens=12, logprobs=True, top_logprobs=3)
check("chat", r.choices[0].message.content and r.usage.completion_tokens > 0 and len(r.choices[0].logprobs.content[0].top_logprobs) == 3, r)
parts = list(client.chat.completions.create(model="freight", messages=messages, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}))
text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
check("chat stream", text == r.choices[0].message.content and parts[-1].usage.total_tokens == r.usage.total_tokens, (text, r))
many = client.chat.completions.create(model="freight", messages=messages, temperature=1, n=3, seed=7, max_tokens=8)
check("chat n=3", len(many.choices) == 3, many)
schema = {"type": "object", "properties": {"port": {"type": "string", "maxLength": 12}, "kg": {"type": "integer"}}, "required": ["port", "kg"], "additionalProperties": False}
r = client.chat.completions.create(model="freight", messages=messages, temperature=0, max_tokens=80,
                                   response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
answer = json.loads(r.choices[0].message.content)
check("chat json schema", r.choices[0].finish_reason == "stop" and set(answer) == {"port", "kg"} and isinstance(answer["kg"], int), r)
r = client.chat.completions.create(model="freight", messages=messages, temperature=0, max_tokens=8, extra_body={"structured_outputs": {"choice": ["Gdansk", "Riga"]}})
check("chat choice", r.choices[0].message.content in ("Gdansk", "Riga"), r)
r = client.completions.create(model="freight", prompt="Gross weight", max_tokens=4, temperature=0, logprobs=2, echo=True)
check("completions echo", r.choices[0].text.startswith("Gross weight") and r.choices[0].logprobs.token_logprobs[0] is None, r)
text = "".join(c.choices[0].text for c in client.completions.create(model="freight", prompt="Gross weight", max_tokens=4, temperature=0, stream=True))
check("completions stream", text == r.choices[0].text[len("Gross weight"):], (text, r))
for name, call, kind in [
    ("unknown model", lambda: client.chat.completions.create(model="other", messages=messages), openai.NotFoundError),
    ("too long", lambda: client.completions.create(model="freight", prompt="a " * 5000, max_tokens=1), openai.BadRequestError),
    ("unknown field", lambda: client.completions.create(model="freight", prompt="a", extra_body={"best_off": 2}), openai.BadRequestError),
    ("schema outside the subset", lambda: client.chat.completions.create(model="freight", messages=messages, response_format={
        "type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "patternProperties": {"a": {}}}}}), openai.BadRequestError),
    ("adapter that is not there", lambda: post(generate + "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}), urllib.error.HTTPError),
]:
    try:
        call()
        check(name, False, "accepted")
    except kind as e:
        check(name, True, e)
events()
r = encoder.embeddings.create(model="encoder", input=["port of loading", "gross weight"])
check("embeddings", len(r.data) == 2 and abs(sum(x * x for x in r.data[0].embedding) - 1) < 1e-3, r)
f = encoder.embeddings.create(model="encoder", input="port of loading", encoding_format="float")
check("embeddings float", max(abs(a - b) for a, b in zip(f.data[0].embedding, r.data[0].embedding)) < 1e-6, f)

documents = ["Sea Waybill, port of loading Gdansk, steel coils", "Invoice for coffee from Santos"]
r = post(encode + "/v1/rerank", {"model": "encoder", "query": "steel coils from Gdansk", "documents": documents, "return_documents": True})
check("rerank", r["results"][0]["index"] == 0 and r["results"][0]["document"]["text"] == documents[0], r)
r = post(encode + "/v1/score", {"model": "encoder", "text_1": "steel coils from Gdansk", "text_2": documents})
check("score", len(r["data"]) == 2 and r["data"][0]["score"] > r["data"][1]["score"], r)


def call(method, path):
    return urllib.request.urlopen(urllib.request.Request(generate + path, method=method)).read().decode()


check("health, version, metrics", call("GET", "/health") == "" and "v1" in call("GET", "/version") and "vllm:num_requests_running" in call("GET", "/metrics"))
before = client.completions.create(model="freight", prompt="Gross weight", max_tokens=4, temperature=0).choices[0].text
for level in "12":
    call("POST", "/sleep?level=" + level)
    asleep = json.loads(call("GET", "/is_sleeping"))["is_sleeping"]
    try:
        client.with_options(max_retries=0).completions.create(model="freight", prompt="a", max_tokens=1)
        check("sleep", False, "answered asleep")
    except openai.InternalServerError as e:
        check("sleep level " + level, asleep and e.status_code == 503, e)
    call("POST", "/wake_up")
    check("wake up", client.completions.create(model="freight", prompt="Gross weight", max_tokens=4, temperature=0).choices[0].text == before)
call("POST", "/reset_prefix_cache")
check("reset prefix cache", client.completions.create(model="freight", prompt="Gross weight " * 20, max_tokens=1).usage.prompt_tokens_details.cached_tokens == 0)
