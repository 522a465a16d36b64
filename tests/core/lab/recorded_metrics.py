"""What a server said, shortened to what the checklist reads, and plans to go with it."""

from __future__ import annotations

from typing import Any

BUSY = """\
# TYPE switchgear_time_to_first_token_seconds histogram
switchgear_time_to_first_token_seconds_bucket{le="0.1"} 40.0
switchgear_time_to_first_token_seconds_bucket{le="0.5"} 90.0
switchgear_time_to_first_token_seconds_bucket{le="1.0"} 100.0
switchgear_time_to_first_token_seconds_bucket{le="+Inf"} 100.0
switchgear_time_to_first_token_seconds_count 100.0
switchgear_time_to_first_token_seconds_sum 20.0
# TYPE switchgear_time_per_output_token_seconds histogram
switchgear_time_per_output_token_seconds_bucket{le="0.02"} 50.0
switchgear_time_per_output_token_seconds_bucket{le="0.04"} 98.0
switchgear_time_per_output_token_seconds_bucket{le="0.1"} 100.0
switchgear_time_per_output_token_seconds_bucket{le="+Inf"} 100.0
switchgear_time_per_output_token_seconds_count 100.0
switchgear_time_per_output_token_seconds_sum 2.2
# TYPE switchgear_request_seconds histogram
switchgear_request_seconds_bucket{le="+Inf"} 100.0
switchgear_request_seconds_count 100.0
switchgear_request_seconds_sum 150.0
# TYPE switchgear_request_queue_seconds histogram
switchgear_request_queue_seconds_bucket{le="0.1"} 100.0
switchgear_request_queue_seconds_bucket{le="+Inf"} 100.0
switchgear_request_queue_seconds_count 100.0
switchgear_request_queue_seconds_sum 2.0
# TYPE switchgear_outputs_total counter
switchgear_outputs_total{finish_reason="stop"} 80.0
switchgear_outputs_total{finish_reason="length"} 20.0
# TYPE switchgear_prompt_tokens_total counter
switchgear_prompt_tokens_total 40000.0
# TYPE switchgear_cached_prompt_tokens_total counter
switchgear_cached_prompt_tokens_total 20000.0
# TYPE switchgear_generated_tokens_total counter
switchgear_generated_tokens_total 12000.0
# TYPE switchgear_requests_waiting gauge
switchgear_requests_waiting 0.0
# TYPE switchgear_kv_usage gauge
switchgear_kv_usage 0.4
# TYPE switchgear_effective_batch_size gauge
switchgear_effective_batch_size 6.5
# TYPE switchgear_engine_steps_total counter
switchgear_engine_steps_total 2000.0
# TYPE switchgear_engine_step_rows_total counter
switchgear_engine_step_rows_total 12000.0
# TYPE switchgear_engine_step_tokens_total counter
switchgear_engine_step_tokens_total 22000.0
# TYPE switchgear_engine_step_seconds_total counter
switchgear_engine_step_seconds_total 60.0
# TYPE switchgear_preemptions_total counter
switchgear_preemptions_total 0.0
# TYPE switchgear_plugin gauge
switchgear_plugin{name="queries",plugin="prefix_cache"} 100.0
switchgear_plugin{name="hits",plugin="prefix_cache"} 40.0
switchgear_plugin{name="evictions",plugin="prefix_cache"} 0.0
"""
"""A server without a complaint."""

FOREIGN = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.0
"""


def changed(**values: float) -> str:
    """The busy server's page with other values, by name without `switchgear_`."""
    lines = BUSY.splitlines()
    for name, value in values.items():
        index = next(at for at, line in enumerate(lines) if line.startswith(f"switchgear_{name} "))
        lines[index] = f"switchgear_{name} {value}"
    return "\n".join([*lines, ""])


def plan_of(*plugins: str, max_num_seqs: int = 16, **owners: str) -> dict[str, Any]:
    """A plan with these plugins on. owners: of hooks that are not the core's."""
    hooks = ("on_ingress", "route", "quantize", "kv_codec", "attention_impl")
    return {
        "dtype": "bfloat16",
        "max_num_seqs": max_num_seqs,
        "plugins": [{"name": plugin} for plugin in plugins],
        "hooks": [{"hook": hook, "owner": owners.get(hook, "core"), "reason": "as recorded"} for hook in hooks],
    }
