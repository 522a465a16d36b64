"""The effective plan: what runs, who owns each hook and why. Printed, hashed and stamped on every result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from .config import Config
from .errors import PluginError
from .records import Device, KVSpec, KVView, Limits
from .registry import CORE, HOOKS, Registry

DEFAULT_OF: Mapping[str, str] = {
    "on_ingress": "no stage",
    "route": "one pool",
    "schedule_step": "static batching",
    "allocate_kv": "contiguous slots",
    "propose_tokens": "no drafts",
    "execute": "one worker in this process",
    "logits": "every token is allowed",
    "quantize": "plain weights",
    "wrap_linear": "nothing around the linears",
    "kv_codec": "stored as computed",
    "attention_impl": "eager, with the score matrix in memory",
    "fused_ops": "plain PyTorch",
    "control": "no commands",
    "observe": "no sinks",
}
"""What happens where no plugin answers a hook, in the plan's words."""


@dataclass(frozen=True, slots=True)
class HookLine:
    """One hook: who answered it, and what that means."""

    hook: str
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class PluginLine:
    """One plugin that is on."""

    name: str
    distribution: str
    version: str
    options: Mapping[str, Any]
    equivalence: str
    summary: str


@dataclass(frozen=True, slots=True)
class EffectivePlan:
    """What the engine does, as opposed to what was asked for; the two may differ only where `degraded` says so."""

    version: str
    model: str
    architecture: str
    dtype: str
    dtype_reason: str
    max_num_seqs: int
    max_step_tokens: int
    max_model_len: int
    seed: int
    kv_block_size: int
    kv_num_blocks: int
    kv_bytes: int
    device: str
    features: tuple[str, ...]
    equivalence: str
    hooks: tuple[HookLine, ...]
    plugins: tuple[PluginLine, ...]
    degraded: Mapping[str, str]
    """Plugins that are on without full effect, with the reason: any where `allow_degrade` is set, else a recipe's."""

    @property
    def hash(self) -> str:
        """Covers config, versions and providers: equal hashes are equal arms on any machine."""
        return digest({**self.table(), "kv_num_blocks": 0, "kv_bytes": 0, "device": "", "features": ()})

    @property
    def environment(self) -> str:
        """Covers what the machine adds: the number of KV blocks and the features kernels choose by."""
        return digest([self.kv_num_blocks, self.kv_bytes, self.device, self.features])

    def table(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> dict[str, Any]:
        return {"hash": self.hash, "environment": self.environment, **self.table()}

    def __str__(self) -> str:
        megabytes = self.kv_bytes / 1e6
        lines = [
            f"plan {self.hash}  environment {self.environment}  switchgear {self.version}",
            f"model        {self.model} ({self.architecture}), {self.dtype}: {self.dtype_reason}",
            f"engine       {self.max_num_seqs} sequences, {self.max_step_tokens} tokens a step, "
            f"{self.max_model_len} tokens a sequence, seed {self.seed}",
            f"kv           {self.kv_num_blocks} blocks of {self.kv_block_size} tokens, {megabytes:.0f} MB",
            f"device       {self.device} {' '.join(self.features)}",
            f"equivalence  {self.equivalence}",
            "",
        ]
        lines += [f"{line.hook:<15}{line.owner:<24}{line.reason}" for line in self.hooks]
        if self.plugins:
            lines.append("")
        for plugin in self.plugins:
            options = " ".join(f"{key}={value}" for key, value in plugin.options.items()) or "no options"
            lines.append(f"on  {plugin.name} ({plugin.distribution} {plugin.version}; {plugin.equivalence}): {options}")
        lines += [f"degraded  {name}: {reason}" for name, reason in self.degraded.items()]
        return "\n".join(lines)


def digest(value: Any) -> str:
    """16 hex digits of SHA-256 over canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def effective_plan(
    config: Config,
    registry: Registry,
    *,
    version: str,
    architecture: str,
    dtype_reason: str,
    device: Device,
    limits: Limits,
    kv: KVView,
    kv_spec: KVSpec,
) -> EffectivePlan:
    """The plan of what was bound. Raises PluginError if a plugin that is on has no effect and may not degrade."""
    degraded = registry.without_effect()
    demanded = [name for name in degraded if name not in config.optional]
    if demanded and not config.engine.allow_degrade:
        name, reason = demanded[0], degraded[demanded[0]]
        raise PluginError(
            f"plugin {name!r} is on and has no effect here: {reason}; switch it off, or set [engine] "
            "allow_degrade = true to start all the same"
        )
    return EffectivePlan(
        version=version,
        model=config.model.name,
        architecture=architecture,
        dtype=device.dtype,
        dtype_reason=dtype_reason,
        max_num_seqs=limits.max_num_seqs,
        max_step_tokens=limits.max_step_tokens,
        max_model_len=limits.max_model_len,
        seed=config.engine.seed,
        kv_block_size=kv.block_size,
        kv_num_blocks=kv.num_blocks,
        kv_bytes=kv.block_size * sum(group.num_blocks * group.bytes_per_token for group in kv_spec),
        device=device.type,
        features=device.features,
        equivalence=str(registry.equivalence()),
        hooks=tuple(line for hook in HOOKS for line in hook_lines(hook, registry)),
        plugins=tuple(
            PluginLine(
                plugin.name,
                plugin.distribution,
                plugin.version,
                msgspec.to_builtins(plugin.config),
                str(plugin.equivalence),
                plugin.summary,
            )
            for plugin in registry.plugins
        ),
        degraded=degraded,
    )


def hook_lines(hook: str, registry: Registry) -> list[HookLine]:
    """One line for each owner of a hook, plugins in config order, and the default where it has a share."""
    counts = {name: count for (bound, name), count in registry.bindings.items() if bound == hook and count}
    order = [plugin.name for plugin in registry.plugins if plugin.name in counts]
    reasons = {name: "; ".join(registry.reasons.get((hook, name), ["on in the config"])) for name in order}
    lines = [HookLine(hook, name, f"{reasons[name]}{share(counts, name)}") for name in order]
    if CORE in counts or not order:
        refused = [f"{name} refused: {'; '.join(why)}" for (h, name), why in registry.refusals.items() if h == hook]
        reason = "; ".join([f"{DEFAULT_OF[hook]}{share(counts, CORE)}", *refused])
        lines.append(HookLine(hook, CORE, reason))
    return lines


def share(counts: Mapping[str, int], name: str) -> str:
    total = sum(counts.values())
    return f", {counts[name]} of {total}" if len(counts) > 1 and name in counts else ""
