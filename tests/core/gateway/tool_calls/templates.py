"""The parts of chat templates that a form of tool calls is known by, in the manner of the models that have them."""

QWEN = """
{%- if tools %}
    {{- "<|im_start|>system\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nReturn <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call>" }}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA = """
{%- if tools is not none %}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{%- endfor %}
{%- endif %}
"""

MISTRAL = """
{%- if tools is not none %}{{- "[AVAILABLE_TOOLS] " }}{{- tools | tojson }}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}
{{- "[TOOL_CALLS] [" }}
"""

QWEN_CODER = """
{%- if tools %}{{- "<tool_call>\\n<function=example>\\n<parameter=arguments>\\n</tool_call>" }}{%- endif %}
"""

NO_TOOLS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
