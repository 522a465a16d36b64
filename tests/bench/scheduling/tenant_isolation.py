"""Whether one tenant can tell from the prefix cache what another one asked.

Two tenants send the same prompt to the engine with the recommended plugins and no model. Counted are the blocks that
the cache found and the tokens that were left to compute, which is what a tenant could time.

Prediction: with `scope = "tenant"` the second tenant hits nothing and computes as many tokens as the first. That the
cache does hit is shown by the same tenant asking twice, and by two tenants under `scope = "shared"`.
"""

from __future__ import annotations

import sys

import measure
import numpy as np
from measure import Report, Target
from no_model import VOCAB_SIZE, engine_without_model
from switchgear import SamplingParams
from switchgear.core.recipes import SCHEDULING
from switchgear.plugins.prefix_cache import CachedPool

PROMPT_LENGTH = 1024


def main() -> int:
    args = measure.options(__doc__).parse_args()
    counted = {
        (scope, tenants): asked_in_turn(scope, tenants)
        for scope in ("tenant", "shared")
        for tenants in (("a", "a"), ("a", "b"))
    }
    rows: list[tuple[object, ...]] = [
        (f'scope = "{scope}"', " then ".join(tenants), first, second, num_hits)
        for (scope, tenants), (first, second, num_hits) in counted.items()
    ]
    first, second, num_hits = counted["tenant", ("a", "b")]
    targets = [
        Target("blocks that the other tenant hits", num_hits, at_most=0),
        Target("tokens it computes, over those of the first", second / first, 1, 1),
        Target("blocks that the same tenant hits", counted["tenant", ("a", "a")][2], at_least=1),
        Target(
            'blocks that the other tenant hits under scope = "shared"', counted["shared", ("a", "b")][2], at_least=1
        ),
    ]
    columns = ("cache", "tenants", "tokens computed", "by the second", "blocks hit")
    return Report("Tenant isolation of the prefix cache", columns, rows, targets).show(args)


def asked_in_turn(scope: str, tenants: tuple[str, str]) -> tuple[int, int, int]:
    """The same prompt from each tenant: tokens computed for the first and for the second, blocks found."""
    engine, executor = engine_without_model(
        {**SCHEDULING, "prefix_cache": {"scope": scope}},
        kv_tokens=4 * PROMPT_LENGTH,
        max_model_len=2 * PROMPT_LENGTH,
    )
    prompt = np.array(measure.random_ids(np.random.default_rng(0), PROMPT_LENGTH, VOCAB_SIZE))
    computed = []
    for index, tenant in enumerate(tenants):
        before = executor.num_tokens
        engine.add(f"{index}", prompt, SamplingParams(max_tokens=1, temperature=0), tenant=tenant)
        while engine.has_work:
            engine.step()
        computed.append(executor.num_tokens - before)
    cache = engine.driver.allocator.value
    assert isinstance(cache, CachedPool) and engine.audit() == []
    return computed[0], computed[1], cache.num_hit


if __name__ == "__main__":
    sys.exit(main())
