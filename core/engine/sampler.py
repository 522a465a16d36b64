"""From logits to tokens, for the whole batch at once.

One row of logits is an *entry*: row `rows[i]` of the batch after the first `offsets[i]` tokens of its draft. Each
operation runs once for all entries that need it, and not at all where none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..model import ops
from ..model.scoring import score_tokens
from ..records import FloatArray, IntArray, TokenScores
from ..sampling_params import SamplingParams
from . import noise
from .law import Filters, Laws, draw, filtered, weights_of
from .penalties import penalise
from .row_options import KnownTokens, Options, RowOptions, RowState
from .stopping import stop_ids

_LEAST_TEMPERATURE = 1e-30
_CPU_BLOCK, _GPU_BLOCK = 2**19, 2**27
"""Logits worked on at once: on a CPU what stays in the cache and is not given back to the system after each use."""
_NOT_A_NUMBER, _NONE_ALLOWED = -1, -2
_ERRORS = {
    _NOT_A_NUMBER: "the model returned logits that are not numbers at output position {}; try dtype float32, and check "
    "the model's files if that fails too.",
    _NONE_ALLOWED: "no token is allowed at output position {}; loosen the grammar, the allowed tokens or min_tokens.",
}


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities at some entries."""

    entries: IntArray
    """`[P]` ascending: entries whose row asked for `logprobs`."""
    values: TokenScores
    """`[P]`, by the raw logits, with as many alternatives as the one of these rows that wants most."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each entry, and what verification needs besides."""

    token_ids: IntArray
    """`[L]`; negative where there is an error."""
    laws: Laws | None
    """Of the entries that are not greedy, if there are any and they were asked for."""
    seeds: IntArray
    """`[L]`, with `children` and `positions`: what an entry's noise depends on."""
    children: IntArray
    positions: IntArray
    errors: Mapping[int, str]
    """By entry: one sentence. The other entries are not concerned."""

    def uniform(self, entries: IntArray, kind: int) -> FloatArray:
        """Noise of these entries for one kind of draw."""
        return noise.uniform(self.seeds[entries], self.children[entries], self.positions[entries], kind)


class Sampler:
    """Samples for the rows it was told of. One thread."""

    def __init__(
        self,
        vocab_size: int,
        eos_ids: frozenset[int],
        argmax: Callable[[torch.Tensor], torch.Tensor] = ops.argmax,
        top_k: ops.TopK = ops.top_k,
    ) -> None:
        """argmax: `[L, V]` to the place of the largest in each row; top_k: to the k largest and theirs."""
        self.vocab_size = vocab_size
        self._argmax = argmax
        self._top_k = top_k
        self._eos_ids = eos_ids
        self._rows = RowOptions()
        self._special: set[int] = set()
        """Rows of which more than the most likely token is wanted."""

    def add(self, row: int, params: SamplingParams, seed: int, child: int, tokens: KnownTokens) -> None:
        """Take in a row. seed: of its request; child: its index among the request's outputs."""
        self._rows.add(row, params, seed, child, tokens, stop_ids(params, self._eos_ids))
        if not takes_most_likely(params):
            self._special.add(row)

    @property
    def rows(self) -> frozenset[int]:
        """Whom it was told of."""
        return self._rows.rows

    def remove(self, row: int) -> None:
        self._rows.remove(row)
        self._special.discard(row)

    def most_likely(self, logits: torch.Tensor, rows: Sequence[int]) -> IntArray | None:
        """`[L]` what `sample` returns for logits `[L, V]` of these rows, where that is quickly said; else None.

        It is for greedy rows without masks, penalties or scores, and logits in this process's memory that are numbers.
        """
        if len(logits) != len(rows) or logits.device.type != "cpu" or not self._special.isdisjoint(rows):
            return None
        if logits.shape[1] != self.vocab_size:
            logits = logits[:, : self.vocab_size]
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self._argmax is ops.argmax:
            # one pass for both: of equals this takes the first as well
            largest, tokens = logits.max(-1)
        else:
            tokens = self._argmax(logits)
            largest = logits.gather(-1, tokens[:, None])[:, 0]
        if not all(map(math.isfinite, largest.tolist())):
            return None
        token_ids: IntArray = tokens.numpy()
        return token_ids

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        offsets: IntArray,
        prefixes: Sequence[IntArray],
        allowed: torch.Tensor | None = None,
        keep_laws: bool = False,
    ) -> Sampled:
        """One token for each entry.

        logits: `[L, V]`, left as they are; rows, offsets: `[L]`; prefixes: drafts, of which the first `offsets[i]`
        tokens count; allowed: `[L, V]` bool. A token depends on its own logits, options, known tokens and seed alone.
        """
        states = self._rows.states(rows)
        options = self._rows.of(states)
        known = [state.tokens() for state in states]
        positions = np.array([len(tokens) - num_prompt for tokens, num_prompt in known], dtype=np.int64) + offsets
        drafts = [prefix[:offset] for prefix, offset in zip(prefixes, offsets.tolist(), strict=True)]
        processed = self._processed(logits, options, states, known, positions, drafts, allowed)

        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        greedy = np.flatnonzero(options["temperature"] == 0)
        random = np.flatnonzero(options["temperature"] > 0)
        if len(greedy):
            tokens[_index(greedy, logits)] = self._argmax(_select(processed, greedy))
        laws: Laws | None = None
        if len(random):
            uniforms = noise.uniform(options["seed"][random], options["child"][random], positions[random], noise.SAMPLE)
            kept: list[torch.Tensor] | None = [] if keep_laws else None
            drawn = _draw_blocks(_select(processed, random), options[random], uniforms, self._top_k, kept)
            tokens[_index(random, logits)] = drawn
            laws = None if kept is None else Laws(random, torch.cat(kept))
        # of greedy entries the largest is at hand
        largest = processed.gather(-1, tokens[:, None])[:, 0] if not len(random) else processed.amax(-1)
        tokens.masked_fill_(largest == -torch.inf, _NONE_ALLOWED)
        tokens.masked_fill_(largest.isnan() | (largest == torch.inf), _NOT_A_NUMBER)

        token_ids: IntArray = tokens.cpu().numpy()
        failed = np.flatnonzero(token_ids < 0).tolist()
        errors = {entry: _ERRORS[int(token_ids[entry])].format(positions[entry]) for entry in failed}
        return Sampled(token_ids, laws, options["seed"], options["child"], positions, errors)

    def score(self, logits: torch.Tensor, rows: IntArray, token_ids: IntArray) -> Scores | None:
        """Log probabilities of `token_ids` `[L]` by the raw `logits` `[L, V]`; entries of negative ids are left out."""
        wanted = self._rows.of(self._rows.states(rows))["logprobs"]
        entries = np.flatnonzero((wanted >= 0) & (token_ids >= 0))
        if not len(entries):
            return None
        chosen = _select(logits[:, : self.vocab_size], entries)
        num_top = int(wanted[entries].max())
        values = score_tokens(chosen, _index(token_ids[entries], logits), num_top, self._top_k)
        return Scores(entries, values)

    def _processed(
        self,
        logits: torch.Tensor,
        options: Options,
        states: Sequence[RowState],
        known: Sequence[tuple[IntArray, int]],
        positions: IntArray,
        drafts: Sequence[IntArray],
        allowed: torch.Tensor | None,
    ) -> torch.Tensor:
        """Logits after bias, masks and penalties; a copy as soon as there is one of them."""
        result = logits[:, : self.vocab_size]
        if result.dtype != torch.float64:
            result = result.float()
        biased = np.flatnonzero(options["has_bias"])
        muted = np.flatnonzero(positions < options["min_tokens"])
        penalised = np.flatnonzero(options["has_penalty"])
        if allowed is None and not (len(biased) or len(muted) or len(penalised)):
            return result

        result = result.clone()
        if len(biased):
            places = _places(biased, [states[entry].biased for entry in biased.tolist()], result)
            biases = np.concatenate([states[entry].biases for entry in biased.tolist()])
            result[places] += torch.from_numpy(biases).to(result)
        if allowed is not None:
            result.masked_fill_(~allowed.to(result.device), -torch.inf)
        if len(muted):
            result[_places(muted, [states[entry].stops for entry in muted.tolist()], result)] = -torch.inf
        if len(penalised):
            seen = []
            for entry in penalised.tolist():
                counts = states[entry].counts
                counts.follow(*known[entry])
                seen.append(counts.after(drafts[entry]))
            strengths = (options[name][penalised] for name in ("repetition", "presence", "frequency"))
            penalise(result, penalised, seen, *strengths)
        return result


def takes_most_likely(params: SamplingParams) -> bool:
    """Whether an output is the most likely token at each position by the raw logits, and no score is asked for."""
    return (
        params.temperature == 0
        and params.logprobs is None
        and not params.min_tokens
        and not params.logit_bias
        and (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    )


def _draw_blocks(
    logits: torch.Tensor, options: Options, uniforms: FloatArray, top_k: ops.TopK, kept: list[torch.Tensor] | None
) -> torch.Tensor:
    """Temperature, filters and the draw for rows that are not greedy, a block at a time. The weights go to `kept`."""
    num_rows = max(1, (_CPU_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK) // logits.shape[-1])
    temperature = torch.from_numpy(np.maximum(options["temperature"], _LEAST_TEMPERATURE)).to(logits)
    tokens = []
    for start in range(0, len(logits), num_rows):
        block = slice(start, start + num_rows)
        filters = Filters(options["top_k"][block], options["top_p"][block], options["min_p"][block])
        weights = filtered(weights_of(logits[block], temperature[block]), filters, top_k=top_k)
        tokens.append(draw(weights, uniforms[block]))
        if kept is not None:
            kept.append(weights)
    return torch.cat(tokens)


def _index(index: IntArray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(index).to(like.device)


def _select(values: torch.Tensor, index: IntArray) -> torch.Tensor:
    """The rows of `values` in ascending `index`, without a copy when that is all of them."""
    return values if len(index) == len(values) else values[_index(index, values)]


def _places(entries: IntArray, tokens: Sequence[IntArray], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where `tokens[i]` of `entries[i]` stand in `[L, V]`."""
    rows = np.repeat(entries, [len(ids) for ids in tokens])
    return _index(rows, like), _index(np.concatenate(tokens), like)
