import json
from pathlib import Path

import pytest
import tokenizers
from switchgear.core.model.files import read_directory
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.model.vocabulary import read_vocabulary
from switchgear.core.testing.tiny import make_tiny_model
from tokenizers import decoders, models, normalizers

STORIES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "tiny_model" / "stories260k"
TEXTS = ["The switch, and 2048 blocks.", "  two  spaces\n\ttab", "J\u00e4ger \u65e5\u672c \u20ac", '{"name": [1, 2]}']


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    raw = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.add_tokens(["<tool_call>", "\u65e5\u672c"])
    raw.save(str(directory / "tokenizer.json"))
    return Tokenizer(read_directory("tiny", directory, directory))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As in Llama 2: byte pieces, U+2581 for spaces, and the space before the first word dropped."""
    directory = make_tiny_model(tmp_path_factory.mktemp("pieces"))
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581The", "a", "{"]
    vocabulary = {piece: id for id, piece in enumerate(entries)}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    raw.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(vocabulary)}))
    return Tokenizer(read_directory("pieces", directory, directory))


@pytest.fixture(scope="module")
def stories() -> Tokenizer:
    if not STORIES.is_dir():
        pytest.skip("the stories260k model is not beside the checkout")
    return Tokenizer(read_directory("stories260k", STORIES, STORIES))


@pytest.fixture(params=["byte_level", "pieces", "stories"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_a_texts_tokens_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    vocabulary = read_vocabulary(tokenizer, tokenizer.vocab_size)
    ids = tokenizer.encode(text, add_special=False)
    written = b"".join(vocabulary.token_bytes[id] for id in ids).decode()
    # a SentencePiece vocabulary puts a space before the first word
    assert written.removeprefix(" " if not tokenizer.is_byte_level else "") == text


def test_byte_pieces_are_bytes_and_later_words_keep_their_space(pieces: Tokenizer) -> None:
    token_bytes = read_vocabulary(pieces, pieces.vocab_size).token_bytes
    assert token_bytes[3 : 3 + 256] == tuple(bytes([byte]) for byte in range(256))
    assert token_bytes[-4:] == (b" ", b" The", b"a", b"{")


def test_special_tokens_are_told_apart_from_others_that_were_added(byte_level: Tokenizer) -> None:
    vocabulary = read_vocabulary(byte_level, byte_level.vocab_size)
    assert vocabulary.special_ids == {0, 1, 2} and vocabulary.token_bytes[2] == b"<|im_end|>"
    assert b"<tool_call>" in vocabulary.token_bytes and "\u65e5\u672c".encode() in vocabulary.token_bytes


def test_ids_that_pad_the_head_stand_for_nothing_and_those_beyond_it_are_left_out(byte_level: Tokenizer) -> None:
    size = byte_level.vocab_size
    assert read_vocabulary(byte_level, size + 3).token_bytes[size:] == (b"", b"", b"")
    small = read_vocabulary(byte_level, 2)
    assert len(small.token_bytes) == 2 and small.special_ids == {0, 1}
