"""A result file that nobody measured: effects, an interaction, a refused arm, a broken one and a voided block, planted.

Deterministic by its seed; run as a script, `made_results.py FILE`, it writes one.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from switchgear.core.lab.results_file import FORMAT, ResultsFile

SWITCHES = ("paged_kv", "prefix_cache", "chunked_prefill")
EFFECTS: Mapping[str, Mapping[str, float]] = {
    "output_tokens_per_s": {"paged_kv": 1.2, "prefix_cache": 1.5, "chunked_prefill": 0.97},
    "ttft": {"paged_kv": 0.9, "prefix_cache": 0.4, "chunked_prefill": 1.3},
    "tpot": {"paged_kv": 1.0, "prefix_cache": 0.95, "chunked_prefill": 0.7},
}
"""The planted factor of each switch on each kind of metric."""
INTERACTION = ("prefix_cache", "chunked_prefill")
INTERACTION_FACTOR = 0.8
"""By which the two together slow `output_tokens_per_s` beyond the product of each."""
LEVELS = {"output_tokens_per_s": 200.0, "ttft": 0.5, "tpot": 0.02}
BROKEN = "paged_kv + prefix_cache + chunked_prefill"
VOIDED = 2
NUM_REQUESTS = 20
ANCHOR = "all off"


def write_results(path: Path, *, num_blocks: int = 8, noise: float = 0.02, seed: int = 0, warm: bool = False) -> Path:
    """Write the file. noise: standard deviation of the logarithm of a run, beside that of its block."""
    generator = np.random.default_rng(seed)
    caches = ["cold", "warm"] if warm else ["cold"]
    with ResultsFile(path) as file:
        file.append("header", **header(seed, caches))
        arms = [arm_row(on, {}) for on in sets()]
        arms.append(arm_row(("paged_kv",), {"plugins.paged_kv.block_size": 32}))
        for arm in arms:
            file.append("arm", **arm)
        ran = [arm for arm in arms if not arm["refused"]]
        for block in range(num_blocks):
            shift = generator.normal(0, 0.1)
            cells = [(arm, cache) for arm in ran for cache in caches]
            order = [cells[place] for place in generator.permutation(len(cells))]
            for position, (arm, cache) in enumerate([(ran[0], caches[0]), *order, (ran[0], caches[0])]):
                if position in (0, len(order) + 1) or (arm["arm"], cache) != (ANCHOR, caches[0]):
                    file.append("run", **run_row(generator, block, position, arm, cache, shift, noise))
            if block == VOIDED:
                reason = "the anchor's e2e_p50 moved by 31 % during the block, the limit is 10 %"
                file.append("void", block=block, reason=reason)
            if block == 0:
                for arm in ran:
                    file.append("equality", **equality_row(arm))
        file.append("end", reason="budget: the next block would not be done in the 40 s that are left")
    return path


def sets() -> list[tuple[str, ...]]:
    choices = product((False, True), repeat=len(SWITCHES))
    return [tuple(name for name, is_on in zip(SWITCHES, on, strict=True) if is_on) for on in choices]


def header(seed: int, caches: list[str]) -> dict[str, Any]:
    about = {"workload": "shared-prefix", "num_requests": NUM_REQUESTS, "input_len": 128, "output_len": 32, "seed": 0}
    return {
        "format": FORMAT,
        "model": "smollm2-135m",
        "recipe": "recommended",
        "design": "full",
        "about_design": "",
        "switches": list(SWITCHES),
        "kept": [],
        "vary": {"plugins.paged_kv.block_size": [16, 32]},
        "caches": caches,
        "anchor": ANCHOR,
        "drift_limit": 0.1,
        "precision": 0.05,
        "workload": {
            "name": "shared-prefix",
            "fingerprint": "0123456789abcdef",
            "seed": 0,
            "num_requests": NUM_REQUESTS,
            "about": about,
        },
        "engine": {"max_num_seqs": 64, "max_step_tokens": 2048, "max_model_len": 4096, "kv_bytes": 1 << 30, "seed": 0},
        "budget_s": 600.0,
        "seed": seed,
        "versions": {"switchgear": "0.1.0", "python": "3.11.0", "torch": "2.13.0", "numpy": "2.0.0"},
        "machine": {
            "processor": "A processor",
            "num_cores": 2,
            "num_threads": 2,
            "features": ["avx2", "avx512f"],
            "memory_bytes": 16 << 30,
            "cache_bytes": 32 << 20,
            "system": "Linux x86_64",
        },
        "command": ["switchgear", "ablate", "--recipe", "recommended", "--design", "full", "--out", "results.jsonl"],
        "started": "2026-12-01T06:00:00+00:00",
    }


def arm_row(on: tuple[str, ...], varied: dict[str, Any]) -> dict[str, Any]:
    refused = "plugin 'prefix_cache' requires 'paged_kv': switch it on, or 'prefix_cache' off"
    is_refused = "prefix_cache" in on and "paged_kv" not in on
    name = " + ".join(on) or ANCHOR
    suffix = "".join(f" [{key.partition('.')[2]}={value}]" for key, value in varied.items())
    hash = hashlib.sha256(f"{name}{suffix}".encode()).hexdigest()[:16]
    plan = [f"plan {hash}  environment 00000000000000ee  switchgear 0.1.0", "model        smollm2-135m, bfloat16"]
    return {
        "arm": name + suffix,
        "on": list(on),
        "off": [switch for switch in SWITCHES if switch not in on],
        "dropped": [],
        "options": {switch: {"block_size": 32} if switch == "paged_kv" and varied else {} for switch in on},
        "varied": varied,
        "baseline": name if varied else None if not on else ANCHOR,
        "plan_hash": "" if is_refused else hash,
        "environment": "" if is_refused else "00000000000000ee",
        "plan": [] if is_refused else [*plan, *(f"on  {switch}" for switch in on)],
        "equivalence": "" if is_refused else "token_equal",
        "refused": refused if is_refused else "",
    }


def factor(kind: str, on: list[str]) -> float:
    """What the switches that are on do to a kind of metric."""
    product = float(np.prod([EFFECTS[kind][switch] for switch in on]))
    return product * INTERACTION_FACTOR if kind == "output_tokens_per_s" and set(INTERACTION) <= set(on) else product


def run_row(
    generator: np.random.Generator,
    block: int,
    position: int,
    arm: dict[str, Any],
    cache: str,
    shift: float,
    noise: float,
) -> dict[str, Any]:
    level = {kind: LEVELS[kind] * factor(kind, arm["on"]) * np.exp(generator.normal(shift, noise)) for kind in LEVELS}
    if cache == "warm" and "prefix_cache" in arm["on"]:
        level["ttft"] /= 2
    spread = np.exp(np.linspace(-0.4, 0.4, NUM_REQUESTS))
    ttft, tpot = level["ttft"] * spread, level["tpot"] * spread
    metrics = {"errors": 0.0, "output_tokens_per_s": level["output_tokens_per_s"]}
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", ttft + 31 * tpot)):
        metrics |= {f"{name}_p{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}
    metrics["prefix_hit_rate"] = 0.7 if "prefix_cache" in arm["on"] else 0.0
    return {
        "block": block,
        "arm": arm["arm"],
        "cache": cache,
        "position": position,
        "seconds": 32 * NUM_REQUESTS / metrics["output_tokens_per_s"],
        "wall_seconds": 5 + 32 * NUM_REQUESTS / metrics["output_tokens_per_s"],
        "metrics": metrics,
        "ttft": ttft.tolist(),
        "tpot": tpot.tolist(),
        "outputs": "same for all",
        "client_cpu_seconds": 0.01,
    }


def equality_row(arm: dict[str, Any]) -> dict[str, Any]:
    is_broken = arm["arm"] == BROKEN
    problem = "after a prompt of 128 tokens, position 3: token 17, everything-off has 29, ahead by 4.21"
    return {
        "arm": arm["arm"],
        "against": "all_off",
        "equivalence": arm["equivalence"],
        "num_tokens": 640,
        "num_undecided": 2,
        "margin": 0.031,
        "measure": "",
        "value": None,
        "bound": None,
        "holds": not is_broken,
        "problem": problem if is_broken else "",
    }


if __name__ == "__main__":
    write_results(Path(sys.argv[1]))
