"""What a hot method may return: one small rule for each, in words that the author of a plugin understands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import numpy as np

from ..engine.plan_checks import problem_of
from ..records import (
    NOT_HELD,
    Audit,
    BlockCopy,
    Continue,
    Draft,
    DraftView,
    Hit,
    Plan,
    Reject,
    Respond,
    Rewrite,
    Slots,
    StepOutput,
    StepView,
    Wait,
)
from .watching import Call, arrays_in


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the engine that was watched."""

    vocab_size: int
    block_size: int
    num_blocks: tuple[int, ...]
    """Of each KV group."""


def problem_of_call(call: Call, sizes: Sizes) -> str | None:
    """What is wrong with a result, or None; methods without a rule may return anything."""
    rule = RULES.get(call.place)
    return rule(call, sizes) if rule is not None else None


def writable_views(call: Call) -> list[str]:
    """Arrays of a view or plan that the core forgot to lock."""
    views = [argument for argument in call.arguments if isinstance(argument, StepView | DraftView | Plan)]
    return [
        path
        for view in views
        for path, array in arrays_in(view, type(view).__name__)
        if array.flags.writeable and array.size
    ]


# -- schedule_step --------------------------------------------------------------------------------------------------


def is_plan(call: Call, sizes: Sizes) -> str | None:
    view = next(argument for argument in call.arguments if isinstance(argument, StepView))
    return problem_of(call.result, view)


# -- allocate_kv ----------------------------------------------------------------------------------------------------


def is_slots(call: Call, sizes: Sizes) -> str | None:
    slots = call.result
    if slots is None:
        return None
    if not isinstance(slots, Slots):
        return f"returned {type(slots).__name__}: Slots or None is needed"
    if not all(isinstance(copy, BlockCopy) for copy in slots.copies):
        return "Slots.copies must hold BlockCopy records"
    for copy in slots.copies:
        problem = numbers_problem((copy.source, copy.target), sizes.num_blocks[copy.group])
        if problem:
            return problem
    return blocks_problem(slots.blocks, sizes, may_lack_some=call.method == "fork")


def is_hit(call: Call, sizes: Sizes) -> str | None:
    hit = call.result
    if not isinstance(hit, Hit):
        return f"returned {type(hit).__name__}: a Hit is needed, an empty one where nothing is cached"
    lengths = {len(blocks) for blocks in hit.blocks}
    if len(lengths) == 1 and hit.num_tokens != lengths.pop() * sizes.block_size:
        return f"Hit.num_tokens is {hit.num_tokens}, its blocks of {sizes.block_size} tokens hold another number"
    return blocks_problem(hit.blocks, sizes, may_lack_some=True)


def blocks_problem(blocks: Any, sizes: Sizes, may_lack_some: bool) -> str | None:
    """may_lack_some: NOT_HELD may stand in front, for blocks that nobody will read."""
    num_groups = len(sizes.num_blocks)
    if not isinstance(blocks, tuple) or len(blocks) != num_groups:
        return f"blocks must be a tuple with one entry for each of the {num_groups} KV groups, not {blocks!r}"
    for group, num_blocks in zip(blocks, sizes.num_blocks, strict=True):
        held = tuple(dropwhile(lambda block: block == NOT_HELD, group)) if may_lack_some else group
        problem = numbers_problem(held, num_blocks)
        if problem:
            return problem
        if len(set(held)) != len(held):
            return f"it names a block twice: {group}"
    return None


def numbers_problem(numbers: Any, num_blocks: int) -> str | None:
    for block in numbers:
        if not isinstance(block, int | np.integer) or not 0 <= block < num_blocks:
            return f"{block!r} is no block number: they go from 0 to {num_blocks - 1}"
    return None


def is_count_of_blocks(call: Call, sizes: Sizes) -> str | None:
    most = max(sizes.num_blocks)
    if isinstance(call.result, int | np.integer) and 0 <= call.result <= most:
        return None
    return f"returned {call.result!r}: a number of blocks from 0 to {most} is needed"


def is_audit(call: Call, sizes: Sizes) -> str | None:
    return None if isinstance(call.result, Audit) else f"returned {type(call.result).__name__}: an Audit is needed"


# -- execute, propose_tokens, logits --------------------------------------------------------------------------------


def is_output(call: Call, sizes: Sizes) -> str | None:
    output = call.result
    if not isinstance(output, StepOutput):
        return f"returned {type(output).__name__}: a StepOutput is needed"
    shape = tuple(output.logits.shape)
    if len(shape) != 2 or shape[1] < sizes.vocab_size:
        return f"StepOutput.logits has the shape {shape}: [outputs, {sizes.vocab_size}] is needed"
    return None


def is_draft(call: Call, sizes: Sizes) -> str | None:
    draft, (view, wanted) = call.result, call.arguments
    if not isinstance(draft, Draft):
        return f"returned {type(draft).__name__}: a Draft is needed, with lens 0 where there is none"
    if draft.lens.shape != (len(view.rows),) or draft.tokens.ndim != 2 or len(draft.tokens) != len(view.rows):
        return f"Draft has lens {draft.lens.shape} and tokens {draft.tokens.shape} for {len(view.rows)} rows"
    if (draft.lens > wanted).any() or (draft.lens < 0).any():
        return f"Draft.lens is {draft.lens.tolist()}, at most {wanted.tolist()} were asked for"
    for tokens, length in zip(draft.tokens, draft.lens, strict=True):
        if ((tokens[:length] < 0) | (tokens[:length] >= sizes.vocab_size)).any():
            return f"Draft.tokens holds {tokens[:length].tolist()}: token ids go from 0 to {sizes.vocab_size - 1}"
    return None


def is_mask(call: Call, sizes: Sizes) -> str | None:
    mask, shape = call.result, (len(call.arguments[0]), sizes.vocab_size)
    if mask is None or (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == shape):
        return None
    return f"returned {describe(mask)}: None or a bool array of shape {shape} is needed"


# -- the worker -----------------------------------------------------------------------------------------------------


def fills_out(call: Call, sizes: Sizes) -> str | None:
    query, out = call.arguments[0], call.arguments[3]
    if out.shape != query.shape:
        return f"`out` has the shape {tuple(out.shape)}, the queries {tuple(query.shape)}"
    return None if bool(out.isfinite().all()) else "`out` is not filled with finite numbers"


def is_encoded(call: Call, sizes: Sizes) -> str | None:
    given, encoded = call.arguments[0], call.result
    shape = (*given.shape[:-1], call.owner.storage_size(given.shape[-1]))
    dtype = f"torch.{call.owner.storage_dtype}"
    if tuple(encoded.shape) == shape and str(encoded.dtype) == dtype:
        return None
    return f"returned {tuple(encoded.shape)} of {encoded.dtype}: {shape} of {dtype} is needed"


def is_decoded(call: Call, sizes: Sizes) -> str | None:
    dtype = call.arguments[1]
    return None if call.result.dtype == dtype else f"returned {call.result.dtype}: {dtype} was asked for"


def is_product(call: Call, sizes: Sizes) -> str | None:
    given, product = call.arguments[0], call.result
    if getattr(product, "ndim", 0) == 2 and len(product) == len(given):
        return None
    return f"returned {describe(product)} for {len(given)} tokens: one row a token is needed"


# -- the gateway and every process ----------------------------------------------------------------------------------


def is_ingress_answer(call: Call, sizes: Sizes) -> str | None:
    if isinstance(call.result, Continue | Rewrite | Respond | Reject | Wait):
        return None
    return f"returned {type(call.result).__name__}: Continue, Rewrite, Respond, Reject or Wait is needed"


def is_table_of_commands(call: Call, sizes: Sizes) -> str | None:
    if isinstance(call.result, Mapping) and all(map(callable, call.result.values())):
        return None
    return f"returned {call.result!r}: names of commands and what to call for each are needed"


def is_table_of_numbers(call: Call, sizes: Sizes) -> str | None:
    if isinstance(call.result, Mapping) and all(isinstance(value, int | float) for value in call.result.values()):
        return None
    return f"returned {call.result!r}: names and numbers are needed"


def describe(value: Any) -> str:
    return f"{type(value).__name__} of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)


Rule = Callable[[Call, Sizes], str | None]
RULES: Mapping[tuple[str, str], Rule] = {
    ("schedule_step", "plan"): is_plan,
    ("schedule_step", "revise"): is_plan,
    ("allocate_kv", "grow"): is_slots,
    ("allocate_kv", "fork"): is_slots,
    ("allocate_kv", "import_"): is_slots,
    ("allocate_kv", "match"): is_hit,
    ("allocate_kv", "num_free"): is_count_of_blocks,
    ("allocate_kv", "audit"): is_audit,
    ("execute", "collect"): is_output,
    ("propose_tokens", "propose"): is_draft,
    ("logits", "mask"): is_mask,
    ("attention_impl", "forward"): fills_out,
    ("kv_codec", "encode"): is_encoded,
    ("kv_codec", "decode"): is_decoded,
    ("quantize", "linear"): is_product,
    ("wrap_linear", "call"): is_product,
    ("on_ingress", "enter"): is_ingress_answer,
    ("control", "commands"): is_table_of_commands,
    ("control", "stats"): is_table_of_numbers,
}
