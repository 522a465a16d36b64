"""The operator's checklist over a live server: why answers start late, why they come slowly, what is wasted.

Each line has the number, what it means, and the switch to try. What the server does not say is a line too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import ConfigError
from .cost_model import CostModel, StepCounts
from .metrics_page import Histogram, MetricsPage

PREFIX = "switchgear_"
CORE = "core"
FIRST_TOKEN, PER_TOKEN, WEEKLY = "time to first token", "time per output token", "every week"

LONG_PROMPT = 1000
"""Tokens from which on a prompt's own computation is most of its time to first token."""
GOOD_HIT_RATE = 0.2
"""A share of cached prompt tokens below which a prefix cache hardly pays."""
QUEUED_SHARE = 0.5
"""Of the time to first token; above it the queue is to blame and not the prefill."""
PREFILL_SHARE = 0.5
"""Of the tokens in steps; above it the steps are mostly prefill."""
SPREAD = 3.0
"""Times the median, above which the 99th percentile says that some are held up by others."""
FULL_KV = 0.9
LOW_PACKING = 0.25
"""Of the sequences that may run at once."""
SHORT_ANSWER = 32
"""Mean output tokens below which much of the traffic may be trivial."""
MEMORY_BOUND = 0.5
"""Share of a step that is there with a single row too; above it a step waits for memory, and more rows come cheap."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist."""

    group: str
    """The question that it belongs to."""
    subject: str
    state: Literal["ok", "look", "missing"]
    """Whether to look at it; `missing` is what the server does not say."""
    value: str
    """The number."""
    meaning: str = ""
    remedy: str = ""
    """The switch to try, or what would answer the question."""


@dataclass(frozen=True, slots=True)
class Server:
    """All that is known of one."""

    page: MetricsPage
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The effective plan in JSON, from /plan; empty if it could not be had."""
    cost_model: CostModel | None = None

    def owners(self, hook: str) -> list[str] | None:
        """Who answers a hook, by the plan; None without a plan."""
        lines = self.plan.get("hooks")
        return [str(line["owner"]) for line in lines if line["hook"] == hook] if lines else None

    def is_on(self, plugin: str) -> bool | None:
        lines = self.plan.get("plugins")
        return None if lines is None else any(line["name"] == plugin for line in lines)

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.page.value(PREFIX + name, **labels)

    def histogram(self, name: str) -> Histogram | None:
        return self.page.histogram(PREFIX + name)

    def ratio(self, part: str, whole: str) -> float | None:
        """Of two counters; None if one is missing or nothing was counted."""
        above, below = self.value(part), self.value(whole)
        return above / below if above is not None and below else None


def check_server(server: Server) -> list[Check]:
    """The whole list, in the order in which an operator asks. Raises ConfigError for a page that is not ours."""
    ours = {name for name in server.page.names if name.startswith(PREFIX)}
    if not ours:
        families = sorted({name.split(":")[0].split("_")[0] for name in server.page.names})
        raise ConfigError(
            f"none of switchgear's metrics is on that page, whose names begin with {', '.join(families[:5])}: give the "
            "/metrics of a switchgear server"
        )
    return [*first_token(server), *per_token(server), *weekly(server)]


def missing(group: str, subject: str, *names: str) -> Check:
    """A line for what the page does not have, or has not counted yet."""
    what = " and ".join(names)
    return Check(group, subject, "missing", f"{what}: not there, or nothing counted yet")


def missing_plan(group: str, subject: str) -> Check:
    return Check(group, subject, "missing", "the plan could not be read", remedy="let the doctor reach /plan as well")


# -- time to first token --------------------------------------------------------------------------------------------


def first_token(server: Server) -> Iterator[Check]:
    yield from first_token_itself(server)
    yield prompt_lengths(server)
    yield cache_hits(server, FIRST_TOKEN)
    yield attention(server)
    yield from prefill_bursts(server)


def first_token_itself(server: Server) -> Iterator[Check]:
    subject, times, queue = "time itself", server.histogram("time_to_first_token_seconds"), queued(server)
    if times is None or not times.count:
        yield missing(FIRST_TOKEN, subject, "switchgear_time_to_first_token_seconds")
    else:
        yield Check(FIRST_TOKEN, subject, "ok", quantiles(times), "to compare with your objective and with last week")
    if queue is None or times is None or not times.count or not times.mean:
        yield missing(FIRST_TOKEN, "queue", "switchgear_request_queue_seconds")
        return
    share = queue.mean / times.mean
    value = f"{seconds(queue.mean)} of {seconds(times.mean)} on average, {share:.0%}"
    if share <= QUEUED_SHARE:
        yield Check(FIRST_TOKEN, "queue", "ok", value, "most of the time is the prompt's own computation")
        return
    meaning, remedy = "requests wait for a slot or for KV longer than for their prompt", more_room(server)
    yield Check(FIRST_TOKEN, "queue", "look", value, meaning, remedy)


def queued(server: Server) -> Histogram | None:
    times = server.histogram("request_queue_seconds")
    return times if times is not None and times.count else None


def more_room(server: Server) -> str:
    """What lets more requests in."""
    if server.is_on("continuous_batching") is False:
        return "--on continuous_batching: a request joins at the next step instead of the next batch"
    if (server.value("kv_usage") or 0.0) > FULL_KV:
        return "--set engine.kv_bytes=MORE, or --on prefix_cache; or another replica"
    return "--set engine.max_num_seqs=MORE while the time per output token allows; or another replica"


def prompt_lengths(server: Server) -> Check:
    subject, requests = "prompt lengths", server.histogram("request_seconds")
    tokens = server.value("prompt_tokens_total")
    if requests is None or not requests.count or tokens is None:
        return missing(FIRST_TOKEN, subject, "switchgear_prompt_tokens_total", "switchgear_request_seconds")
    mean = tokens / requests.count
    cost = prefill_cost(server, mean)
    value = f"{mean:.0f} tokens on average{cost}"
    if mean < LONG_PROMPT:
        return Check(FIRST_TOKEN, subject, "ok", value, "a prompt is computed before its first token")
    meaning = "prompts are long, and all of a prompt is computed before its first token"
    return Check(
        FIRST_TOKEN, subject, "look", value, meaning, "shorten what every prompt repeats, or --on prefix_cache"
    )


def prefill_cost(server: Server, num_tokens: float) -> str:
    """What such a prompt takes by the cost model, if there is one."""
    if server.cost_model is None or num_tokens < 1:
        return ""
    return f", {seconds(server.cost_model.seconds(StepCounts.prefill(round(num_tokens))))} by the cost model"


def cache_hits(server: Server, group: str) -> Check:
    subject, rate = "cache hit rate", server.ratio("cached_prompt_tokens_total", "prompt_tokens_total")
    if rate is None:
        return missing(group, subject, "switchgear_cached_prompt_tokens_total", "switchgear_prompt_tokens_total")
    value = f"{rate:.0%} of prompt tokens were found in the prefix cache"
    if server.is_on("prefix_cache") is False:
        meaning, remedy = "nothing is kept of prompts that begin alike", "--on prefix_cache (with --on paged_kv)"
        return Check(group, subject, "look", value, meaning, remedy)
    evictions = server.value("plugin", plugin="prefix_cache", name="evictions")
    if evictions:
        value += f", {evictions:.0f} blocks evicted"
    if rate >= GOOD_HIT_RATE:
        return Check(group, subject, "ok", value, "these tokens cost neither time nor memory again")
    meaning = "prompts hardly begin alike, or what they share is evicted before it is used again"
    remedy = "put what is the same first in the prompt"
    if evictions:
        remedy += ", or --set engine.kv_bytes=MORE"
    return Check(group, subject, "look", value, meaning, remedy)


def attention(server: Server) -> Check:
    subject, owners = "attention implementation", server.owners("attention_impl")
    if owners is None:
        return missing_plan(FIRST_TOKEN, subject)
    if CORE not in owners:
        return Check(FIRST_TOKEN, subject, "ok", ", ".join(owners), "the score matrix is never in memory")
    reasons = [line["reason"] for line in server.plan["hooks"] if line["hook"] == "attention_impl"]
    value = f"{', '.join(owners)}: {'; '.join(reasons)}"
    meaning = "scores of every pair of tokens go through memory, which grows with the square of a prompt"
    return Check(FIRST_TOKEN, subject, "look", value, meaning, "--on flash_attention")


def prefill_bursts(server: Server) -> Iterator[Check]:
    """Steps that are mostly prefill hold up those that decode, and prompts hold up each other."""
    subject = "prefill bursts"
    rows, tokens = server.value("engine_step_rows_total"), server.value("engine_step_tokens_total")
    if not rows or tokens is None:
        yield missing(FIRST_TOKEN, subject, "switchgear_engine_step_rows_total", "switchgear_engine_step_tokens_total")
        return
    # a row that decodes has one token: what there is beyond that is prefill
    share = max(0.0, 1 - rows / tokens)
    value = f"{share:.0%} of the tokens in steps are prefill"
    gaps = server.histogram("time_per_output_token_seconds")
    ratio = gaps.quantile(0.99) / gaps.quantile(0.5) if gaps is not None and gaps.count else math.nan
    if not math.isnan(ratio):
        value += f", the slowest outputs take {ratio:.1f} times as long per token as the median"
    if share < PREFILL_SHARE or not ratio > SPREAD:
        yield Check(FIRST_TOKEN, subject, "ok", value, "prompts do not visibly hold up others")
        return
    chunked = server.is_on("chunked_prefill")
    remedy = (
        "--set plugins.chunked_prefill.max_num_batched_tokens=LESS, see `switchgear profile`"
        if chunked
        else "--on chunked_prefill"
    )
    meaning = "long prompts come in bursts, and whoever decodes beside them waits"
    yield Check(FIRST_TOKEN, subject, "look", value, meaning, remedy)


# -- time per output token ------------------------------------------------------------------------------------------


def per_token(server: Server) -> Iterator[Check]:
    subject, times = "time itself", server.histogram("time_per_output_token_seconds")
    if times is None or not times.count:
        yield missing(PER_TOKEN, subject, "switchgear_time_per_output_token_seconds")
    else:
        yield Check(PER_TOKEN, subject, "ok", quantiles(times), "to compare with your objective and with last week")
    yield batch_size(server)
    yield from kv_residency(server)
    yield quantization(server)
    yield memory_bound(server)


def mean_rows(server: Server) -> float | None:
    return server.ratio("engine_step_rows_total", "engine_steps_total")


def batch_size(server: Server) -> Check:
    subject, rows, limit = "effective batch size", mean_rows(server), server.plan.get("max_num_seqs")
    if rows is None:
        return missing(PER_TOKEN, subject, "switchgear_engine_step_rows_total", "switchgear_engine_steps_total")
    now = server.value("effective_batch_size")
    value = f"{rows:.1f} rows a step" + ("" if now is None else f", {now:.1f} in the last seconds")
    value += "" if limit is None else f", at most {limit}"
    if limit is None or rows < 0.9 * limit:
        return Check(PER_TOKEN, subject, "ok", value, "every row of a step waits for all of it")
    meaning = "steps are as full as they may be: each token waits for that many rows"
    remedy = "--set engine.max_num_seqs=LESS for shorter steps and a longer queue; or another replica"
    return Check(PER_TOKEN, subject, "look", value, meaning, remedy)


def kv_residency(server: Server) -> Iterator[Check]:
    subject, usage = "KV residency", server.value("kv_usage")
    preempted, outputs = server.value("preemptions_total"), server.value("outputs_total")
    if usage is None:
        yield missing(PER_TOKEN, subject, "switchgear_kv_usage")
        return
    value = f"{usage:.0%} of the KV blocks are in use now"
    if preempted is not None:
        value += f", {preempted:.0f} sequences lost theirs" + (f" of {outputs:.0f} outputs" if outputs else "")
    if preempted:
        meaning = "KV ran out: who lost it computes its tokens again, and its client sees a gap"
        remedy = "--set engine.kv_bytes=MORE or engine.max_num_seqs=LESS"
        if server.is_on("paged_kv") is False:
            remedy = "--on paged_kv, which reserves no whole slots; or " + remedy
        yield Check(PER_TOKEN, subject, "look", value, meaning, remedy)
    elif usage > FULL_KV:
        meaning = "the next long sequence takes KV from another"
        yield Check(PER_TOKEN, subject, "look", value, meaning, "--set engine.kv_bytes=MORE")
    else:
        yield Check(PER_TOKEN, subject, "ok", value, "there is room, and nobody computes twice")


def quantization(server: Server) -> Check:
    subject, owners, dtype = "quantization level", server.owners("quantize"), server.plan.get("dtype")
    if owners is None:
        return missing_plan(PER_TOKEN, subject)
    codecs = server.owners("kv_codec") or []
    value = f"weights: {', '.join(owners)}; computed in {dtype}; KV codec: {', '.join(codecs) or CORE}"
    if owners != [CORE]:
        return Check(PER_TOKEN, subject, "ok", value, "a plugin stores the weights")
    meaning = f"all weights are read in {dtype} at every step"
    remedy = "a plugin that stores them in fewer bits, if decode waits for memory (below); it may cost quality"
    return Check(PER_TOKEN, subject, "look", value, meaning, remedy)


def memory_bound(server: Server) -> Check:
    """Whether a step costs as much as with one row: then time goes into reading weights, and rows are nearly free."""
    subject, rows = "memory-bound again", mean_rows(server)
    step = server.ratio("engine_step_seconds_total", "engine_steps_total")
    if rows is None or step is None:
        return missing(PER_TOKEN, subject, "switchgear_engine_step_seconds_total", "switchgear_engine_steps_total")
    value = f"{seconds(step)} a step of {rows:.1f} rows"
    if server.cost_model is None:
        remedy = "give --profile FILE, the cost model that `switchgear profile --out FILE` wrote on that machine"
        return Check(PER_TOKEN, subject, "missing", value, "what a step of one row takes is not known here", remedy)
    model, batch = server.cost_model, max(1, round(rows))
    alone, packed = (model.seconds(StepCounts.decode(count, 1)) for count in (1, batch))
    share = alone / packed
    value += f"; by the cost model {share:.0%} of a decode step of {batch} is there with one row too"
    if share < MEMORY_BOUND:
        return Check(PER_TOKEN, subject, "ok", value, "the step is mostly arithmetic: more rows cost their full time")
    meaning = "the step is mostly reading weights: more rows come cheap, fewer bits make it shorter"
    remedy = "more requests at once, a plugin that stores weights in fewer bits, or speculation"
    return Check(PER_TOKEN, subject, "look", value, meaning, remedy)


# -- the three questions of every week ------------------------------------------------------------------------------


def weekly(server: Server) -> Iterator[Check]:
    yield predictable_queries(server)
    yield trivial_work(server)
    yield packing(server)


def predictable_queries(server: Server) -> Check:
    """Whole answers kept at the door, or at least the beginnings of prompts."""
    subject = "are predictable queries cached"
    stages = server.owners("on_ingress")
    if stages is None:
        return missing_plan(WEEKLY, subject)
    caches = {plugin: rate for plugin in stages if (rate := hit_rate(server.page, plugin)) is not None}
    prefix = server.ratio("cached_prompt_tokens_total", "prompt_tokens_total")
    beginnings = "" if prefix is None else f"; {prefix:.0%} of prompt tokens come from the prefix cache"
    if caches:
        value = ", ".join(f"{plugin} answers {rate:.0%}" for plugin, rate in caches.items()) + beginnings
        return Check(WEEKLY, subject, "ok", value, "these answers cost no step at all")
    meaning = "a question that was asked before is computed again, all of its answer"
    remedy = "a cache at the door: a plugin with on_ingress, see `switchgear plugins`"
    return Check(WEEKLY, subject, "look", f"no cache of whole answers is on{beginnings}", meaning, remedy)


def hit_rate(page: MetricsPage, plugin: str) -> float | None:
    """Of what a plugin counts as `queries` and `hits`."""
    counts = page.by_label(f"{PREFIX}plugin", "name", plugin=plugin)
    return counts["hits"] / counts["queries"] if "hits" in counts and counts.get("queries") else None


def trivial_work(server: Server) -> Check:
    subject, routers = "is trivial work routed away", server.owners("route")
    if routers is None:
        return missing_plan(WEEKLY, subject)
    length = server.ratio("generated_tokens_total", "outputs_total")
    answers = "" if length is None else f"; answers have {length:.0f} tokens on average"
    if routers != [CORE]:
        return Check(WEEKLY, subject, "ok", f"{', '.join(routers)} chooses the model{answers}")
    meaning = "every request goes to the one model, the easy ones too"
    if length is not None and length < SHORT_ANSWER:
        meaning += "; answers as short as these are often easy"
    remedy = "a router (a plugin with route) and a smaller model beside this one"
    return Check(WEEKLY, subject, "look", f"no router is on{answers}", meaning, remedy)


def packing(server: Server) -> Check:
    subject, rows, limit = "is decode packed", mean_rows(server), server.plan.get("max_num_seqs")
    if rows is None or limit is None:
        return missing(WEEKLY, subject, "switchgear_engine_step_rows_total", "max_num_seqs of the plan")
    waiting = server.value("requests_waiting") or 0.0
    value = f"{rows:.1f} of {limit} rows a step, {rows / limit:.0%}; {waiting:.0f} wait now"
    if rows / limit >= LOW_PACKING:
        return Check(WEEKLY, subject, "ok", value, "the weights that a step reads serve many")
    if waiting > rows:
        meaning = "requests wait although steps have room"
        return Check(WEEKLY, subject, "look", value, meaning, more_room(server))
    meaning = "each step reads all weights for few rows: there is too little traffic for this many replicas"
    return Check(
        WEEKLY, subject, "look", value, meaning, "send the same traffic to fewer replicas, or bundle offline work"
    )


# -- numbers as text ------------------------------------------------------------------------------------------------


def quantiles(times: Histogram) -> str:
    parts: Sequence[str] = [f"p{share * 100:.0f} {seconds(times.quantile(share))}" for share in (0.5, 0.9, 0.99)]
    return f"{', '.join(parts)} of {times.count:.0f}"


def seconds(value: float) -> str:
    """With the unit that suits it."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"
