import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.model.detokenizer import Detokenizer
from switchgear.core.model.files import read_directory
from switchgear.core.model.gguf_pieces import SPACE, build_pieces, piece_merges
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.testing.tiny import MERGE_SOURCE, make_tiny_model
from tokenizers import models, trainers

SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def _trained_pieces() -> list[str]:
    """Pieces of an English text, spaces within them, the most useful first; then its characters."""
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    words = " ".join(MERGE_SOURCE.split()).split(" ")
    tokenizer.train_from_iterator([SPACE + SPACE.join(words[i : i + 3]) for i in range(len(words) - 3)], trainer)
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    return [piece for piece in pieces if len(piece) > 1] + [piece for piece in pieces if len(piece) == 1]


PIECES = _trained_pieces()
SCORES: Mapping[str, float] = {piece: -float(rank) for rank, piece in enumerate(PIECES)}
VOCABULARY: Mapping[str, int] = {token: id for id, token in enumerate([*SPECIAL, *BYTES, *PIECES])}
TEXTS = (
    st.text() | st.text("the switch 10.\n\u2581\u20ac") | st.lists(st.sampled_from(MERGE_SOURCE.split())).map(" ".join)
)


def _joined_by_score(text: str) -> list[str]:
    """SentencePiece's own procedure: join the two neighbours that make the best piece, the leftmost of equals."""
    pieces = list(text)
    while True:
        joined = [left + right for left, right in pairwise(pieces)]
        scored = [(-SCORES[piece], i) for i, piece in enumerate(joined) if piece in SCORES]
        if not scored:
            break
        _, first = min(scored)
        pieces[first : first + 2] = [joined[first]]
    return [part for piece in pieces for part in ([piece] if piece in SCORES else _as_bytes(piece))]


def _as_bytes(piece: str) -> list[str]:
    return [BYTES[byte] for byte in piece.encode()]


@pytest.fixture(scope="module")
def gemma_like() -> tokenizers.Tokenizer:
    return build_pieces(VOCABULARY, SCORES, "<unk>", adds_prefix_space=False)


@pytest.fixture(scope="module")
def llama_like() -> tokenizers.Tokenizer:
    return build_pieces(VOCABULARY, SCORES, "<unk>", adds_prefix_space=True)


@given(text=TEXTS)
def test_tokens_are_those_of_sentencepiece(gemma_like: tokenizers.Tokenizer, text: str) -> None:
    assert gemma_like.encode(text).tokens == _joined_by_score(text.replace(" ", SPACE))


@given(text=TEXTS)
def test_tokens_of_a_text_with_a_prefix_space_too(llama_like: tokenizers.Tokenizer, text: str) -> None:
    expected = _joined_by_score((" " + text).replace(" ", SPACE)) if text else []
    assert llama_like.encode(text).tokens == expected


@given(text=TEXTS)
def test_text_comes_back_but_for_the_sign_of_a_space(
    gemma_like: tokenizers.Tokenizer, llama_like: tokenizers.Tokenizer, text: str
) -> None:
    for tokenizer in (gemma_like, llama_like):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text.replace(SPACE, " ")


def test_best_pieces_join_first_whatever_their_ids() -> None:
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    scores = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "abc": -3.0}
    assert piece_merges(vocabulary, scores) == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]


def test_equal_scores_go_by_id() -> None:
    vocabulary = {"a": 0, "b": 1, "ba": 2, "ab": 3}
    assert piece_merges(vocabulary, dict.fromkeys(vocabulary, -1000.0)) == [("b", "a"), ("a", "b")]


def test_pieces_without_a_score_never_join(gemma_like: tokenizers.Tokenizer) -> None:
    assert gemma_like.encode("<0x41>").tokens != ["<0x41>"]
    assert gemma_like.encode("</s>").tokens != ["</s>"]


@pytest.mark.parametrize("name", ["gemma_like", "llama_like"])
def test_pushed_text_equals_decoding_at_once(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    raw: tokenizers.Tokenizer = request.getfixturevalue(name)
    make_tiny_model(tmp_path)
    raw.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(VOCABULARY)}))
    tokenizer = Tokenizer(read_directory(name, tmp_path, tmp_path))

    @given(ids=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=24))
    def check(ids: list[int]) -> None:
        detokenizer = Detokenizer(tokenizer)
        assert "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush() == tokenizer.decode(ids)

    check()
