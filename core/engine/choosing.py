"""Which tokens come next: drafts, masks, sampling and verification, with the plugins that have a say in it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PluginFault, RequestError
from ..interfaces import takes_structures
from ..records import Draft, DraftView, IntArray, StepOutput
from ..sampling_params import Structure
from .driver import Chosen
from .outcome import Outcome, draft_of
from .parts import Parts, Submitted
from .sampler import Sampler
from .sequence import Sequence
from .verify import Entries, Verified, fitted, no_draft, verify

if TYPE_CHECKING:
    import torch


class Choosing:
    """Holds what sampler, proposer and logits stages know of each row; the same tokens whatever else runs."""

    def __init__(self, parts: Parts) -> None:
        self.sampler = Sampler(parts.vocab_size, parts.eos_ids, parts.argmax, parts.top_k)
        self.proposer = parts.proposer
        self.stages = parts.logits_stages
        self.registry = parts.registry
        self.structures = next((stage.value for stage in self.stages if takes_structures(stage.value)), None)
        """Who holds outputs to a structure."""
        self.vocab_size = parts.vocab_size
        self.seed = parts.seed

    def check(self, structure: Structure) -> None:
        """Raise RequestError for a structure that no output can be held to here."""
        if self.structures is None:
            raise RequestError(
                f"no plugin that is on holds outputs to a structure ({structure.kind}): switch on structured_output"
            )
        with self.registry.blaming():
            try:
                self.structures.check_structure(structure)
            except ValueError as error:
                raise RequestError(f"the structure ({structure.kind}) cannot be kept to: {error}") from error

    def add(self, sequences: Rows[Sequence]) -> None:
        """Take in new rows, which were checked: all of them, or none if a plugin fails."""
        with self.registry.blaming(), ExitStack() as undo:
            for sequence in sequences:
                if sequence.params.structure is not None:
                    assert self.structures is not None, "the request was checked"
                    undo.callback(self.structures.drop, np.array([sequence.row], dtype=np.int64))
                    self.structures.begin(sequence.row, sequence.params.structure)
            undo.pop_all()
        for sequence in sequences:
            known = known_tokens(sequence)
            self.sampler.add(sequence.row, sequence.params, sequence.seed, sequence.child, known)

    def propose(self, step: int, chosen: list[Chosen]) -> Draft:
        """Drafts for the rows that were given room for some."""
        if self.proposer is None:
            return no_draft(len(chosen))
        wanted = np.array([wish.num_drafts for wish in chosen], dtype=np.int64)
        if not wanted.any():
            return no_draft(len(chosen))
        tokens = tuple(wish.sequence.tokens.view for wish in chosen)
        rows = np.array([wish.sequence.row for wish in chosen], dtype=np.int64)
        for given in (rows, wanted):
            given.setflags(write=False)
        draft = self.proposer.value.propose(DraftView(step, self.seed, rows, tokens), wanted)
        try:
            return fitted(draft, wanted, self.vocab_size)
        except (ValueError, AttributeError, TypeError) as error:
            raise PluginFault(self.proposer.plugin, "propose", str(error)) from error

    def most_likely(self, step: Submitted, output: StepOutput) -> IntArray | None:
        """`[L]` the tokens of the rows that sample, where nothing was drafted and nobody wants more; else None."""
        if self.stages or step.draft.tokens.shape[1]:
            return None
        chosen = step.chosen
        return self.sampler.most_likely(output.logits, [chosen[index].sequence.row for index in step.sampling.tolist()])

    def verify(self, step: Submitted, output: StepOutput) -> tuple[Verified, IntArray]:
        """Sample every row that has no more to compute, and see which drafts stand.

        Returns what came out, and the first entry of each of these rows.
        """
        rows = np.array([step.chosen[index].sequence.row for index in step.sampling], dtype=np.int64)
        entries = Entries.of(rows, draft_of(step.draft, step.sampling))
        return verify(self.sampler, output.logits, entries, self._allowed(entries)), entries.starts

    def _allowed(self, entries: Entries) -> torch.Tensor | None:
        """`[L, V]` tokens that every logits stage allows, or None."""
        allowed, shape = None, (len(entries.rows), self.vocab_size)
        for stage in self.stages:
            mask: Any = stage.value.mask(entries.rows, entries.prefixes, entries.offsets)
            if mask is None:
                continue
            if not (isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == shape):
                raise PluginFault(stage.plugin, "mask", f"returned something else than None or booleans {list(shape)}")
            allowed = mask if allowed is None else allowed & mask
        if allowed is None:
            return None
        import torch

        return torch.from_numpy(allowed)

    def advance(self, sequence: Sequence, token_ids: IntArray) -> None:
        """The row took these tokens."""
        for stage in self.stages:
            stage.value.advance(sequence.row, tuple(token_ids.tolist()))

    def commit(self, chosen: list[Chosen], results: list[Outcome]) -> None:
        """Tell the proposer how many of its drafts stood, for every row that goes on."""
        if self.proposer is None:
            return
        alive = [(wish, result) for wish, result in zip(chosen, results, strict=True) if wish.sequence.is_alive]
        rows = np.array([wish.sequence.row for wish, _ in alive], dtype=np.int64)
        num_accepted = np.array([result.num_computed - wish.num_tokens for wish, result in alive], dtype=np.int64)
        self.proposer.value.commit(rows, num_accepted)

    def drop_drafts(self, sequence: Sequence) -> None:
        """The row was preempted: the proposer starts anew with it."""
        if self.proposer is not None:
            self.proposer.value.drop(np.array([sequence.row], dtype=np.int64))

    def remove(self, sequence: Sequence, everybody: ExitStack) -> None:
        """Forget a row. Whoever raises, `everybody` tells the others all the same."""
        self.sampler.remove(sequence.row)
        everybody.callback(self.drop_drafts, sequence)
        for stage in self.stages:
            everybody.callback(stage.value.drop, np.array([sequence.row], dtype=np.int64))


def known_tokens(sequence: Sequence) -> Callable[[], tuple[IntArray, int]]:
    return lambda: (sequence.tokens.view, sequence.num_prompt)
