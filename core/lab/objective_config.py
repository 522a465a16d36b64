"""A config for a stated objective, from what a profile measured, each setting with its reason.

In a steady state with `B` rows, requests of `input_len` and `output_len` tokens end at `B / output_len` a step, and as
many begin: a step computes `B` tokens of decode and `B * input_len / output_len` of prompts on average. At worst it has
the whole chunk budget. The cost model prices both, and every batch size and chunk that the profile covers is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..config import Config, PluginEntry, plain
from ..errors import ConfigError
from ..registry import CORE
from .cost_model import CostModel, StepCounts
from .profile import Profile
from .thresholds import DEPARTURE

Goal = Literal["throughput", "latency"]
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ENOUGH = 0.97
"""Of the best throughput: beyond that, larger batches only make everybody wait."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    goal: Goal = "throughput"
    ttft: float | None = None
    """Seconds to the first token, of a request that finds a slot free."""
    tpot: float | None = None
    """Seconds per output token, in the worst step."""
    input_len: int = 512
    output_len: int = 128

    def check(self, max_model_len: int) -> None:
        """Raise ConfigError for what nobody can ask for."""
        for name, value in (("--ttft", self.ttft), ("--tpot", self.tpot)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value:g}: it must be more than 0 seconds")
        if min(self.input_len, self.output_len) < 1 or self.input_len + self.output_len > max_model_len:
            raise ConfigError(
                f"--input-len {self.input_len} and --output-len {self.output_len}: both must be at least 1, and "
                f"together at most [engine] max_model_len, which is {max_model_len}"
            )


@dataclass(frozen=True, slots=True)
class Prospect:
    """What one batch size and chunk would do, by the cost model."""

    num_rows: int
    num_chunk: int
    step: float
    """Seconds of the mean step, which is the time per output token."""
    worst_step: float
    """With a whole chunk in it."""
    ttft: float
    output_tokens_per_s: float

    def meets(self, wish: Wish) -> bool:
        return (wish.tpot is None or self.worst_step <= wish.tpot) and (wish.ttft is None or self.ttft <= wish.ttft)

    def misses_by(self, wish: Wish) -> float:
        """The factor by which the worse of the two objectives is exceeded."""
        over = [1.0]
        if wish.tpot is not None:
            over.append(self.worst_step / wish.tpot)
        if wish.ttft is not None:
            over.append(self.ttft / wish.ttft)
        return max(over)


@dataclass(frozen=True, slots=True)
class Reason:
    setting: str
    """As `--set` writes it."""
    why: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The config, why, and what to expect of it."""

    config: Config
    prospect: Prospect
    is_met: bool
    reasons: tuple[Reason, ...]


def recommend(profile: Profile, config: Config, wish: Wish) -> Recommendation:
    """The best of what the profile covers. config: what was profiled; what it says otherwise is kept.

    Raises ConfigError for a wish that is none.
    """
    wish.check(profile.plan.max_model_len)
    prospects = list(all_prospects(profile, wish))
    meeting = [prospect for prospect in prospects if prospect.meets(wish)]
    chosen = choose(meeting, wish) if meeting else min(prospects, key=lambda prospect: prospect.misses_by(wish))
    return make(profile, config, wish, chosen, bool(meeting))


def all_prospects(profile: Profile, wish: Wish) -> Iterator[Prospect]:
    # behind the largest measured batch the model only guesses
    most = min(profile.max_rows, kv_rows(profile, wish))
    for num_rows in sorted({*(size for size in SIZES if size < most), most}):
        for num_chunk in sorted({min(chunk, wish.input_len) for chunk in CHUNKS}):
            if num_rows * wish.input_len <= num_chunk * wish.output_len or num_chunk == wish.input_len:
                yield prospect_of(profile.model, wish, num_rows, num_chunk)


def kv_rows(profile: Profile, wish: Wish) -> int:
    """Sequences whose KV fits, all of them at their end."""
    plan = profile.plan
    blocks = -(-(wish.input_len + wish.output_len) // plan.kv_block_size)
    return max(1, plan.kv_num_blocks // blocks)


def prospect_of(model: CostModel, wish: Wish, num_rows: int, num_chunk: int) -> Prospect:
    decode = StepCounts.decode(num_rows, wish.input_len + wish.output_len // 2)
    # on average a chunk sees half of its prompt
    per_step = min(num_chunk, round(num_rows * wish.input_len / wish.output_len))
    step = model.seconds(decode + chunk_of(wish, per_step))
    # the last chunk of a prompt has all of it before it
    worst = max(step, model.seconds(decode + chunk_of(wish, num_chunk, wish.input_len)))
    num_chunks = -(-wish.input_len // num_chunk)
    ttft = num_chunks * model.seconds(decode + chunk_of(wish, num_chunk))
    # a step that must take more prompt tokens than its budget starves the decodes of requests
    share = 1.0 if not per_step else min(1.0, num_chunk * wish.output_len / (num_rows * wish.input_len))
    return Prospect(num_rows, num_chunk, step, worst, ttft, share * num_rows / step)


def chunk_of(wish: Wish, num_tokens: int, context_len: int | None = None) -> StepCounts:
    """So many tokens of one prompt, with so many of it in the cache afterwards; by default half of the prompt."""
    if not num_tokens:
        return StepCounts(0, 0, 0, 0, 0)
    context = max(num_tokens, wish.input_len // 2 if context_len is None else context_len)
    return StepCounts.of_rows([num_tokens], [context], 1)


def choose(prospects: list[Prospect], wish: Wish) -> Prospect:
    """For throughput the smallest batch that has nearly all of it, with the largest chunk that the objective allows.

    For latency the largest batch whose step is hardly longer than the shortest, with the chunk that a request's time as
    a whole is shortest with, where every one of its tokens comes from a worst step.
    """
    if wish.goal == "throughput":
        best = max(prospect.output_tokens_per_s for prospect in prospects)
        enough = [prospect for prospect in prospects if prospect.output_tokens_per_s >= ENOUGH * best]
        return min(enough, key=lambda prospect: (prospect.num_rows, prospect.ttft, prospect.worst_step))
    shortest = min(prospect.step for prospect in prospects)
    cheap = [prospect for prospect in prospects if prospect.step <= (1 + DEPARTURE) * shortest]
    return min(cheap, key=lambda prospect: (-prospect.num_rows, prospect.ttft + wish.output_len * prospect.worst_step))


def make(profile: Profile, config: Config, wish: Wish, chosen: Prospect, is_met: bool) -> Recommendation:
    budget = chosen.num_rows + chosen.num_chunk
    step_tokens = max(config.engine.max_step_tokens, budget)
    engine = msgspec.structs.replace(config.engine, max_num_seqs=chosen.num_rows, max_step_tokens=step_tokens)
    plugins, added = with_scheduling(profile, plain(config.plugins), budget)
    # in a file each plugin is named, and one that refuses would keep the engine from starting
    idle = config.optional.intersection(profile.plan.degraded)
    entries = tuple(PluginEntry(name, options) for name, options in plugins.items() if name not in idle)
    better = msgspec.structs.replace(config, engine=engine, plugins=entries, optional=frozenset())
    return Recommendation(better, chosen, is_met, tuple(reasons(profile, wish, chosen, budget, added)))


def with_scheduling(
    profile: Profile, plugins: dict[str, dict[str, Any]], budget: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The plugins with a scheduler that mixes prompts and decodes, and the names of those that were not on."""
    added: dict[str, dict[str, Any]] = {}
    if any(line.hook == "schedule_step" and line.owner == CORE for line in profile.plan.hooks):
        added["continuous_batching"] = {}
    if "chunked_prefill" not in plugins:
        added["chunked_prefill"] = {}
    merged = {**added, **plugins}
    merged["chunked_prefill"] = {**merged["chunked_prefill"], "max_num_batched_tokens": budget}
    return merged, list(added)


def reasons(profile: Profile, wish: Wish, chosen: Prospect, budget: int, added: list[str]) -> Iterator[Reason]:
    yield Reason(f"engine.max_num_seqs={chosen.num_rows}", why_rows(profile, wish, chosen))
    yield Reason(f"plugins.chunked_prefill.max_num_batched_tokens={budget}", why_chunk(profile, wish, chosen))
    for name in added:
        what = {
            "continuous_batching": "requests join and leave at every step, which the numbers here take for granted",
            "chunked_prefill": "a prompt in pieces holds up no decode for longer than a chunk",
        }[name]
        yield Reason(f"--on {name}", f"{what}; it was off when this was measured, so profile again with it")


def why_rows(profile: Profile, wish: Wish, chosen: Prospect) -> str:
    crossover = profile.crossover.batch_size
    line = f"leaves the memory line at {crossover:.1f} rows" if crossover else "stays on the memory line as measured"
    rate = f"{chosen.output_tokens_per_s:.0f} output tokens/s at {chosen.step * 1000:.1f} ms a step; decode {line}"
    if wish.goal == "latency":
        return f"the most rows whose step is within {DEPARTURE:.0%} of the shortest: {rate}"
    limit = " within the objective" if (wish.tpot or wish.ttft) else ""
    return f"the fewest rows that give {ENOUGH:.0%} of the best throughput{limit}: {rate}"


def why_chunk(profile: Profile, wish: Wish, chosen: Prospect) -> str:
    text = (
        f"{chosen.num_rows} decodes and {chosen.num_chunk} tokens of prompts take {chosen.worst_step * 1000:.1f} ms at "
        f"worst, and a prompt of {wish.input_len} has its first token after {chosen.ttft:.2f} s"
    )
    free = profile.chunk.num_tokens
    if free is not None:
        text += f"; up to {free} tokens are free beside {profile.chunk.num_rows} decodes"
    return text


# -- as TOML --------------------------------------------------------------------------------------------------------


def to_toml(recommendation: Recommendation) -> str:
    """What `--config` reads: everything that differs from the defaults, the reasons as comments."""
    config = recommendation.config
    lines = [f"# {reason.setting}: {reason.why}" for reason in recommendation.reasons]
    sections: list[tuple[str, Mapping[str, Any]]] = [
        ("model", changed(config.model)),
        ("engine", changed(config.engine)),
        ("server", changed(config.server)),
        *((f"plugins.{toml_key(entry.name)}", entry.options) for entry in config.plugins),
    ]
    if not config.plugins:
        sections.append(("plugins", {}))
    for name, values in sections:
        if values or name.startswith("plugins"):
            lines += ["", f"[{name}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def changed(section: msgspec.Struct) -> dict[str, Any]:
    """Options of a section that are not at their default."""
    default = msgspec.to_builtins(type(section)())
    return {key: value for key, value in msgspec.to_builtins(section).items() if value != default[key]}


def toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else toml_value(key)


def toml_value(value: Any) -> str:
    """One value. Strings as JSON has them, which TOML reads as well."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # DEL is the one character that JSON leaves as it is and TOML does not take
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
