"""Writes model/chat/testdata: templates that use what public chat templates
use, and what transformers renders for them.

    python bench/golden/chat.py model/chat/testdata

The templates are written for this purpose, one in the manner of each family.
Written with transformers 5.24.0 and jinja2 3.1.6.
"""

import datetime
import json
import pathlib
import sys

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


def main(out):
    datetime.datetime = Clock
    utils.datetime = Clock
    golden = {}
    for name, template in TEMPLATES.items():
        (out / f"{name}.jinja").write_text(template)
        golden[name] = {}
        for case, given in CASES.items():
            given = dict(given, tools=given.get("tools"))
            messages = given.pop("messages")
            tools = given.pop("tools")
            prompt = given.pop("add_generation_prompt")
            row = {"messages": messages, "tools": tools, "prompt": prompt, "kwargs": given}
            try:
                text, _ = utils.render_jinja_template(
                    conversations=[messages], tools=tools, chat_template=template, add_generation_prompt=prompt, **TOKENS, **given
                )
                row["text"] = text[0]
            except Exception as e:  # a template refuses a conversation in any way it likes
                row["error"] = f"{type(e).__name__}: {e}"
            golden[name][case] = row
    (out / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
