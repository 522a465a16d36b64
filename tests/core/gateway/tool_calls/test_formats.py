import re

import pytest
from switchgear.core.errors import RequestError
from switchgear.core.gateway.tool_calls.formats import HERMES, LLAMA3_JSON, MISTRAL, Format, detect

from .templates import LLAMA, NO_TOOLS, QWEN, QWEN_CODER
from .templates import MISTRAL as MISTRAL_TEMPLATE


@pytest.mark.parametrize(
    ("template", "format", "reason"),
    [
        (QWEN, HERMES, "<tool_call> and arguments"),
        (LLAMA, LLAMA3_JSON, '"parameters": dictionary'),
        (MISTRAL_TEMPLATE, MISTRAL, "[TOOL_CALLS]"),
        (QWEN_CODER, None, "Qwen3-Coder, which is not read here"),
        (MISTRAL_TEMPLATE + "[ARGS]", None, "Mistral since mid 2025"),
        ("{{ tools }}", None, "a form that is not known here"),
        (NO_TOOLS, None, "no place for tools"),
    ],
)
def test_the_form_of_calls_is_told_by_the_template_with_the_reason(
    template: str, format: Format | None, reason: str
) -> None:
    detected = detect({"chat_template": template})
    assert detected.format is format and reason in detected.reason


def test_of_several_templates_the_one_for_tools_counts() -> None:
    templates = [{"name": "default", "template": NO_TOOLS}, {"name": "tool_use", "template": QWEN}]
    assert detect({"chat_template": templates}).format is HERMES
    assert detect({"chat_template": templates[:1]}).format is None


def test_a_model_without_a_template_is_refused() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        detect({})


def test_ids_are_of_the_length_that_the_templates_take() -> None:
    assert re.fullmatch("call_[0-9a-f]{24}", HERMES.new_id()) and HERMES.new_id() != HERMES.new_id()
    assert re.fullmatch("[0-9a-f]{9}", MISTRAL.new_id())
