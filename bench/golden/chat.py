"""Writes model/chat/testdata: templates that use what public chat templates
use, and what transformers renders for them.

    python bench/golden/chat.py model/chat/testdata

and corpus.json, random conversations with a checksum of what each template makes of
them. Templates of public models are compared by

    python bench/golden/chat.py --corpus FILE TEMPLATE.jinja...
    go test ./model/chat -run Corpus -corpus FILE -templates DIR

The templates are written for this purpose, one in the manner of each family.
Written with transformers 5.24.0 and jinja2 3.1.6.
"""

import datetime
import json
import pathlib
import random
import sys
import zlib

import transformers.utils.chat_template_utils as utils

TEMPLATES = {
    # Qwen2: a default system turn, string concatenation, loop.first
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    # Qwen2.5: tools as JSON, slices, nested conditions, tool turns
    "tools": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You answer questions about freight.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <function-name>}<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # Qwen3: namespace, reversed slice, string methods, a keyword argument
    "thinking": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    # Llama 3.1: dates, defaults by "is not defined", message lists cut at the front, indented JSON
    "dated": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # Mistral, Gemma: roles that must alternate, an exception otherwise
    "alternating": """{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    # DeepSeek, GLM: block trimming without dashes, macros, content parts, items(), loop controls, generation
    "blocks": """{% macro text(content) %}
{% if content is string %}
{{ content }}{% else %}
{% for part in content %}
{% if part.type == 'text' %}
{{ part.text }}{% endif %}
{% endfor %}
{% endif %}
{% endmacro %}
{{ bos_token }}
{% for m in messages %}
    {% if m['role'] == 'system' %}
{{ text(m.content) }}
    {% continue %}
    {% endif %}
  {% if m.role == 'assistant' %}
{% generation %}<a>{{ text(m['content']) }}{% endgeneration %}
  {% else %}
<{{ m.role | upper }}>{{ text(m.content) }}{{ ' (' ~ m.name ~ ')' if m.name else '' }}
  {% endif %}
{% endfor %}
{% if tools %}
{% for k, v in tools[0].items() | sort %}
{{ k }}={{ v if v is string else v | tojson }};
{% endfor %}
{{ tools | map(attribute='type') | join(',') }}
{% endif %}
{{ ['b', 'a'] | sort | join('+') ~ 1 ~ true }} {{ {'x': 1}['x'] }} {{ [1, 2, 3][-1] }} {{ 7 // 2 }} {{ "it's" | tojson }}
{% if add_generation_prompt %}<a>{% endif %}
""",
}

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Finds a container's <status> & \"position\" für Zürich",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}, "at": {"type": "number", "minimum": 0.5}}, "required": ["id"], "additionalProperties": False},
    },
}
CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"id": "MSKU-1", "at": 2}}}

CASES = {
    "user": dict(messages=[{"role": "user", "content": "What is the weight? "}], add_generation_prompt=True),
    "system": dict(messages=[{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Née <b>\n{{ x }}"}], add_generation_prompt=True),
    "turns": dict(
        messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"}],
        add_generation_prompt=True,
        enable_thinking=False,
    ),
    "answer": dict(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "r\n"}], add_generation_prompt=False),
    "twice": dict(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b", "name": "Bo"}], add_generation_prompt=False),
    "tools": dict(
        messages=[
            {"role": "user", "content": "where?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"port": "Santos"}', "name": "lookup"},
            {"role": "tool", "content": "two"},
        ],
        tools=[TOOL],
        add_generation_prompt=True,
    ),
    "two calls": dict(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}], add_generation_prompt=False),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}], add_generation_prompt=True),
}
TOKENS = dict(bos_token="<s>", eos_token="</s>")


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7, 15, 4, 5)


def render(template, given):
    given = dict(given)
    messages, tools, prompt = given.pop("messages"), given.pop("tools", None), given.pop("add_generation_prompt")
    try:
        text, _ = utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, add_generation_prompt=prompt, **TOKENS, **given
        )
        return {"text": text[0]}
    except Exception as e:  # a template refuses a conversation in any way it likes
        return {"error": f"{type(e).__name__}: {e}"}


TEXTS = [
    "", " ", "\n", "What is the weight?", "  two  blanks  ", "\n\nlines\n", "a\r\nb\tc", "{{ messages }} {% if x %}", "<b>&amp; \"quotes\" 'single' \\ back\\slash /", "naïve Zürich ñ", "e\u0301 combining", "🚢👩‍👩‍👧🇧🇷", "提单号码 これは 한국어",
    "עברית العربية", "zero\u200bwidth\u00a0nbsp\u2028line\u0085", "\x00\x07\x1b[31m", "</s><s>[INST] x [/INST]", "<|im_start|>system\nx<|im_end|>", "<think>\nhm\n</think>\n\nanswer", "<think></think>x", "a</think>b</think>c", "<tool_response>\n1\n</tool_response>",
    '{"k": [1, 2.50, null, true], "é": "\\u00e9"}', "```python\nprint(1)\n```", "1e5 0x10 -3.0", "None True null", "x" * 300, "#hash ##Heading", "%s %d {} {0}", "trailing ", " leading", "\ufeffbom", "don't", "A.B.C.", "[TOOL_CALLS]",
]
VALUES = [0, -1, 1.0, 2.5, 1e-7, 1e22, 12345678901234, True, False, None, "", "é\n\"", [], {}, [1, [2, {"b": 1, "a": [None]}]], {"z": 1, "a": {"y": "x", "b": 2}}]


def tool(rng, name):
    keys = rng.sample(["id", "at", "unit", "note", "zone"], rng.randint(0, 4))
    kinds = [{"type": "string"}, {"type": "number", "minimum": 0.5}, {"type": "array", "items": {"type": "integer"}}, {"type": "string", "enum": ["kg", "t<é>"]}, {"type": ["string", "null"], "description": rng.choice(TEXTS[3:14])}]
    parameters = {"type": "object", "properties": {k: rng.choice(kinds) for k in keys}, "required": keys[:1]}
    function = [("name", name), ("description", rng.choice(TEXTS[3:14])), ("parameters", parameters)]
    if rng.random() < 0.3:
        rng.shuffle(function)
    return {"type": "function", "function": dict(function)}


def conversation(rng):
    """Mostly what clients send: an optional system turn, turns that alternate, calls with their answers."""
    names = ["lookup", "get_weight", "rate"]
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
    given = {}
    if rng.random() < 0.45:
        given["tools"] = [tool(rng, n) for n in names[: rng.randint(1, 3)]]
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
        if "tools" in given and rng.random() < 0.6:
            calls = []
            for i in range(1 if rng.random() < 0.7 else 2):
                call = {"id": f"call{rng.randint(10000, 99999)}", "type": "function", "function": {"name": rng.choice(names), "arguments": {k: rng.choice(VALUES) for k in rng.sample(["id", "at", "zone", "é"], rng.randint(0, 3))}}}
                calls.append(call)
            messages.append({"role": "assistant", "content": rng.choice(["", "", "let me see", None] if rng.random() < 0.3 else [""]), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "content": rng.choice(TEXTS), "name": call["function"]["name"], "tool_call_id": call["id"]})
        answer = {"role": "assistant", "content": rng.choice(TEXTS)}
        if rng.random() < 0.2:
            answer["reasoning_content"] = rng.choice(TEXTS)
        messages.append(answer)
    if rng.random() < 0.6:
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
    elif rng.random() < 0.1:
        messages.append({"role": "user", "content": [{"type": "text", "text": rng.choice(TEXTS)}, {"type": "text", "text": rng.choice(TEXTS)}]})
    if rng.random() < 0.05:
        rng.shuffle(messages)
    given |= {"messages": messages, "add_generation_prompt": messages[-1]["role"] != "assistant"}
    if rng.random() < 0.2:
        given["enable_thinking"] = rng.random() < 0.5
    return given


# Expressions of the kind that templates are made of, over the variables below.
VARIABLES = {
    "messages": [{"role": "user", "content": "a"}],
    "s": "  A b,c\n",
    "words": "one</t>two</t>three",
    "one": ["x"],
    "three": [3, 1, 2],
    "d": {"z": 1, "a": {"y": "é", "b": [1.0, True, None, {"k": "it's"}]}, "m": "t"},
    "empty": {},
    "none": None,
    "f": 1e-07,
    "g": 2.0,
    "n": 7,
}
EXPRESSIONS = """messages[-1].role|messages[-1]['content']|messages[0:]|messages[:-1] !length|messages[1:] !length|one[-1]|three[-3]|three[1:][-2]|three[::-1]|three !sort|three !sort !first|three !last|(three !list)[-3]
s.strip()|s.lstrip()|s.rstrip()|s.strip(' ,\\n')|s.split()|s.split() !length|s.split(',')|s.split(',')[-1]|s.split(',', 1)[-2]|s !trim|s.replace('b', 'x')|s.replace(' ', '')|s.replace(' ', '', 1)|s.upper()|s.lower()|s !upper|s.title()|s !capitalize|s.startswith('  A')|s.endswith('\\n')|s.find('b')
words.split('</t>')[-1]|words.split('</t>')[0]|words.split('</t>')[-3]|words.split('</x>')[-1]|words.rsplit('</t>', 1)[0]|words.partition('</t>')[2]|'</t>' in words|'x' not in words|words[0]|words[:3]|words[-5:]|words !length|words.count('t')|words.index('two') if false else 1
d.items() !list|d !items !list|d.keys() !list|d.values() !list|d !length|d.get('z')|d.get('q', 5)|d['a']['y']|d !tojson|d !tojson(indent=2)|d.a.b|d.a.b !length|d.a !tojson(separators=(',', ':'))|d !dictsort|'z' in d|'q' in d|d.q is defined|d.z is defined|d is mapping|d.a.b is iterable|d.a.b is sequence|s is string|n is number|none is none
'T' if empty else 'F'|'T' if d else 'F'|'T' if none else 'F'|'T' if [] else 'F'|'T' if one else 'F'|'T' if '' else 'F'|'T' if 0 else 'F'|not empty|empty !length|empty !tojson|empty.items() !list !length
f|g|n|n / 2|n // 2|n % 3|-n|n + g|n ~ s ~ g|true|false|true and false|1 < 2 < 3|n == 7.0|'a' == 'a'|f !string|g !int|n !float|'5' !int + 1|n !abs|[1, 'a', 2.5, True]|{'k': [1, 'v']}
one !join(', ')|three !join('-')|', '.join(one)|three !sum|three !max|three !min|three !reverse !list|three !map('string') !list|messages !map(attribute='role') !list|messages !selectattr('role', 'equalto', 'user') !list !length|(messages !selectattr('role', 'equalto', 'user') !list)[-1].content|messages !rejectattr('role', 'equalto', 'user') !list !length|three !select('odd') !list|three !batch(2) !list|three !unique !list
none !default('x', true)|q !default('x')|s !default('x')|loop is defined|range(3) !list|range(1, 7, 2) !list|namespace(a=1).a|dict(a=1).a|s !replace(' ', '_')|s !length|s !first|s !string|'%s-%d' !format('a', 3)|'a' * 3|[1] + [2]|s !e|'<b>' !e|'<b>'|words !truncate(8)|s !indent(2)|'a\\nb' !indent(4)|'a\\nb' !indent(4, true)|'x' is eq('x')|n is odd|n is divisibleby(7)|'x' in ['x']|'t' in d.m|3 in three|d.a.b !length|d.a.b !first
"""


def expressions():
    out = []
    for text in EXPRESSIONS.replace("\n", "|").split("|"):
        if not text:
            continue
        # The bar separates expressions, so that filters are written with another sign.
        text = text.replace("!=", "\0").replace("!", "|").replace("\0", "!=")
        out.append([text, direct(text)])
    return {"variables": VARIABLES, "expressions": out}


def direct(text):
    try:
        return utils._compile_jinja_template("{{ " + text + " }}").render(**VARIABLES)
    except Exception:  # what the reference does not take need not be taken
        return None


def corpus(path, templates):
    rng = random.Random("conversations")
    given = [conversation(rng) for _ in range(160)]
    sums = {}
    for name, template in templates.items():
        rows = [render(template, g) for g in given]
        # What Python writes of a list or None no model was trained on.
        sums[name] = [None if any(x in r.get("text", "") for x in ("[{'type'", "{'type'")) else zlib.crc32(r["text"].encode()) if "text" in r else r["error"] for r in rows]
    path.write_text(json.dumps({"conversations": given, "sums": sums}, separators=(",", ":"), ensure_ascii=False) + "\n")


def main(out):
    golden = {}
    for name, template in TEMPLATES.items():
        (out / f"{name}.jinja").write_text(template)
        golden[name] = {}
        for case, given in CASES.items():
            rest = {k: v for k, v in given.items() if k not in ("messages", "tools", "add_generation_prompt")}
            row = {"messages": given["messages"], "tools": given.get("tools"), "prompt": given["add_generation_prompt"], "kwargs": rest} | render(template, given)
            golden[name][case] = row
    (out / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    corpus(out / "corpus.json", TEMPLATES)
    (out / "expressions.json").write_text(json.dumps(expressions(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    datetime.datetime = Clock
    utils.datetime = Clock
    if sys.argv[1] == "--corpus":
        corpus(pathlib.Path(sys.argv[2]), {pathlib.Path(p).stem: pathlib.Path(p).read_text() for p in sys.argv[3:]})
    else:
        main(pathlib.Path(sys.argv[1]))
