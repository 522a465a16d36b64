"""A SentencePiece vocabulary as BPE: its scores say which pieces join first, so merges can be read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

SPACE = "\u2581"
"""What stands for a space within a piece."""


def build_pieces(
    vocabulary: Mapping[str, int], scores: Mapping[str, float], unknown: str | None, adds_prefix_space: bool
) -> Tokenizer:
    """Normalizer, BPE and decoder of a vocabulary with byte pieces such as `<0xE2>`.

    scores: of the pieces that joining may yield.
    unknown: what stands for bytes without a piece.
    adds_prefix_space: each text, and each part of it after a special token, begins with a space that decoding drops.
    """
    model = models.BPE(
        vocab=dict(vocabulary),
        merges=piece_merges(vocabulary, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces: normalizers.Normalizer = normalizers.Replace(" ", SPACE)
    if adds_prefix_space:
        spaces = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    tokenizer.normalizer = spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_prefix_space else steps)
    return tokenizer


def piece_merges(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best third first; equal scores go by id.

    Of one piece the ways with the longer first half come first, as in the converters of transformers.
    """
    by_rank: Sequence[str] = sorted(scores, key=lambda piece: (-scores[piece], vocabulary[piece]))
    return [
        (piece[:cut], piece[cut:])
        for piece in by_rank
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in scores and piece[cut:] in scores
    ]
