import json
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.errors import RequestError
from switchgear.core.model.detokenizer import Detokenizer
from switchgear.core.model.files import read_directory
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.testing.tiny import make_tiny_model
from tokenizers import decoders, models, normalizers

STORIES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "tiny_model" / "stories260k"
FIRST_WORD = 3 + 256
"""The id of the first entry of WORDS, behind the special tokens and the bytes."""
WORDS = ["\u2581", "\u2581the", "\u2581switch", "es", "a", "b", "\u2581\u2581", "\u20ac", "\ufffd"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    raw = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.add_tokens(["<tool>", "\u65e5\u672c", "plain text"])
    raw.save(str(directory / "tokenizer.json"))
    return Tokenizer(read_directory("tiny", directory, directory))


def _make_pieces(directory: Path, decoder: decoders.Decoder | None) -> Tokenizer:
    """A vocabulary in the manner of SentencePiece: byte pieces, and U+2581 in the place of spaces."""
    make_tiny_model(directory)
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: id for id, piece in enumerate(["<unk>", "<s>", "</s>", *byte_pieces, *WORDS])}
    raw = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    if decoder is not None:
        raw.decoder = decoder
    raw.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(vocabulary)}))
    return Tokenizer(read_directory("pieces", directory, directory))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As in Llama 2: the space before the first word is dropped."""
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _make_pieces(tmp_path_factory.mktemp("pieces"), decoders.Sequence(steps))


@pytest.fixture(scope="module")
def spaced_pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As in Gemma: every space stays."""
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _make_pieces(tmp_path_factory.mktemp("spaced_pieces"), decoders.Sequence(steps))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _make_pieces(tmp_path_factory.mktemp("metaspace"), decoders.Metaspace())


@pytest.fixture(scope="module")
def undecoded(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _make_pieces(tmp_path_factory.mktemp("undecoded"), None)


@pytest.fixture(scope="module")
def stories() -> Tokenizer:
    if not STORIES.is_dir():
        pytest.skip("the stories260k model is not beside the checkout")
    return Tokenizer(read_directory("stories260k", STORIES, STORIES))


@pytest.fixture(scope="module", params=["byte_level", "pieces", "spaced_pieces", "metaspace", "undecoded", "stories"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


def _pushed(tokenizer: Tokenizer, ids: list[int], skip_special: bool) -> str:
    detokenizer = Detokenizer(tokenizer, skip_special)
    return "".join(detokenizer.push([id]) for id in ids) + detokenizer.flush()


@given(data=st.data(), skip_special=st.booleans())
def test_pushed_text_equals_decoding_at_once(tokenizer: Tokenizer, data: st.DataObject, skip_special: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=24))
    assert _pushed(tokenizer, ids, skip_special) == tokenizer.decode(ids, skip_special)


@given(text=st.text())
def test_real_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    assert _pushed(tokenizer, ids, True) == tokenizer.decode(ids)


@given(data=st.data())
def test_what_came_out_is_never_taken_back(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=12))
    cut = data.draw(st.integers(0, len(ids)))
    first = Detokenizer(tokenizer)
    begun = first.push(ids[:cut])
    assert tokenizer.decode(ids).startswith(begun)


def test_character_comes_out_with_its_last_byte(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level)
    ids = byte_level.encode("\U0001f642")
    assert len(ids) == 4
    assert [detokenizer.push([id]) for id in ids] == ["", "", "", "\U0001f642"]


def test_cut_character_is_flushed_as_a_replacement(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push(byte_level.encode("ok \U0001f642")[:-1]) == "ok "
    assert detokenizer.flush() == "\ufffd"


def test_later_pieces_keep_their_leading_space(pieces: Tokenizer) -> None:
    detokenizer = Detokenizer(pieces)
    the, switch = FIRST_WORD + 1, FIRST_WORD + 2
    assert detokenizer.push([the]) == "the"
    assert detokenizer.push([switch]) == " switch"


@pytest.mark.parametrize("name", ["byte_level", "pieces"])
def test_cost_does_not_grow_with_the_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    id = tokenizer.encode("a", add_special=False)[-1]
    detokenizer = Detokenizer(tokenizer)

    def seconds_of_pushes() -> float:
        start = time.perf_counter()
        for _ in range(500):
            detokenizer.push([id])
        return time.perf_counter() - start

    first = min(seconds_of_pushes() for _ in range(3))
    detokenizer.push([id] * 50_000)
    assert min(seconds_of_pushes() for _ in range(3)) < 5 * first


def test_id_out_of_range_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="out of range"):
        Detokenizer(byte_level).push([byte_level.vocab_size])
