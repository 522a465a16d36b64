import time
from typing import Any

import pytest
import tokenizers
import transformers
from switchgear.core.errors import RequestError
from switchgear.core.model import chat_sandbox
from switchgear.core.model.chat import render
from switchgear.core.testing.tiny import CHAT_TEMPLATE
from tokenizers import models

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "What is 2 + 2?\n"},
    {"role": "assistant", "content": " 4 "},
    {"role": "user", "content": 'Say "so" in caf\u00e9 style \U0001f642'},
]

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
BLOCKS = """
{%- for message in messages %}
    {%- if message.role == "system" %}
        {{- bos_token ~ message.content | trim }}
    {%- else %}
        {%- if message.role == "assistant" %}{% generation %}
<a>{{ message.content | tojson }}</a>
        {% endgeneration %}{% continue %}{% endif %}
<u>{{ message | tojson(indent=2) }}</u>
    {%- endif %}
{% endfor %}
{% set counter = namespace(value=0) %}
{% for number in range(3)[::-1] %}{% set counter.value = counter.value + number %}{% endfor %}
{{ counter.value }} {{ range(4) | length }} {{ tools is none }} {{ "x" * 3 }} {{ dict(a=1) }}
{% if add_generation_prompt %}{{ '[go]' }}{% endif %}
"""
DATED = "{{ strftime_now('%Y') }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _transformers_renders(template: str, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    raw = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))


def _config(template: Any) -> dict[str, Any]:
    return {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "chat_template": template}


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, SMOLLM2, LLAMA2, BLOCKS, DATED], ids=["tiny", "smollm2", "llama2", "blocks", "dated"]
)
def test_renders_what_transformers_renders(template: str, add_generation_prompt: bool) -> None:
    for messages in (CONVERSATION, CONVERSATION[1:], CONVERSATION[1:2]):
        ours = render(messages, _config(template), add_generation_prompt=add_generation_prompt)
        assert ours == _transformers_renders(template, messages, add_generation_prompt)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render([{"role": "user", "content": parts}], _config("{{ messages[0].content }}")) == "one two"


def test_other_keys_and_variables_reach_the_template() -> None:
    template = "{{ messages[0].name }} {{ tools[0].function.name }}"
    messages = [{"role": "user", "content": "", "name": "Ada"}]
    assert render(messages, _config(template), tools=[{"function": {"name": "add"}}]) == "Ada add"


def test_the_default_of_several_templates_is_used() -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert render(CONVERSATION, _config(templates)) == "plain"


@pytest.mark.parametrize("config", [{}, {"chat_template": None}, {"chat_template": [{"name": "rag", "template": ""}]}])
def test_model_without_template_says_so(config: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="this model has no chat template; use a plain prompt"):
        render(CONVERSATION, config)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "there are no messages"),
        (["hello"], "message 0 has no role"),
        ([{"content": "hello"}], "message 0 has no role"),
        ([{"role": 1, "content": "hello"}], "message 0 has no role"),
        ([{"role": "user"}], "content of message 0 must be a string or a list of text parts"),
        ([{"role": "user", "content": ""}, {"role": "user", "content": 5}], "content of message 1"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content of message 0"),
    ],
)
def test_messages_are_checked(messages: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        render(messages, _config(CHAT_TEMPLATE))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only users may speak') }}", "only users may speak"),
        ("{{ messages[0].content.nothing.more }}", "has no attribute 'nothing'"),
        ("{% for %}", "Expected an expression"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.__class__ }}", "forbidden attribute '__class__'"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "forbidden attribute '__class__'"),
        ("{{ render.__globals__ }}", "undefined"),
        ("{{ messages.append(1) }}", "forbidden attribute 'append'"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ 'x' * 10 ** 10 }}", "multiplies to more than"),
        ("{{ 10 ** 10 ** 10 }}", "multiplies to more than"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_template_that_misbehaves_is_a_request_error(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=f"chat template refused the messages.*({reason}).*plain prompt"):
        render(CONVERSATION, _config(template))


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].role }}{% endfor %}{% endfor %}",
    ],
)
def test_endless_template_is_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"it runs longer than 0\.2 seconds"):
        render(CONVERSATION, _config(template))
    assert time.monotonic() - start < 2.0


def test_output_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_CHARACTERS", 1000)
    with pytest.raises(RequestError, match="it writes more than 1000 characters"):
        render(CONVERSATION, _config("{% for i in range(9999) %}{{ i }}{% endfor %}"))
