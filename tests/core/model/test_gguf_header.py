import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchgear.core.model.gguf_header import HeaderError, read_header
from switchgear.core.testing.tiny_gguf import make_tiny_gguf


def _array(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content, np.uint8)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _header(*pairs: bytes, tensors: bytes = b"", num_tensors: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, len(pairs)) + b"".join(pairs) + tensors


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_tiny_gguf(tmp_path_factory.mktemp("header") / "tiny.gguf").read_bytes()


def test_header_equals_what_the_formats_own_reader_finds(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", family="qwen3_moe", mlp_only_layers=[], moe_intermediate_size=64)
    metadata, tensors = read_header(np.memmap(path, np.uint8, mode="r"))
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            assert metadata.pop(key) == pytest.approx(field.contents()), key
    assert metadata == {}
    for expected in reader.tensors:
        found = tensors.pop(expected.name)
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert (found.kind, found.start, found.num_bytes) == (
            expected.tensor_type,
            expected.data_offset,
            expected.n_bytes,
        )
    assert tensors == {}


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"i{bits}", -(2 ** (bits - 1)))
    writer.add_float32("f32", 1e-6)
    writer.add_float64("f64", 1e-6)
    writer.add_bool("yes", True)
    writer.add_array("flags", [True, False])
    writer.add_array("numbers", [1.5, -2.0])
    writer.add_array("texts", ["a", "\u20ac", ""])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata, _ = read_header(np.memmap(tmp_path / "values.gguf", np.uint8, mode="r"))
    for bits in (8, 16, 32, 64):
        assert (metadata[f"u{bits}"], metadata[f"i{bits}"]) == (2**bits - 1, -(2 ** (bits - 1)))
    assert metadata["f32"] == metadata["f64"] == 1e-6
    assert metadata["yes"] is True and metadata["flags"] == [True, False]
    assert metadata["numbers"] == [1.5, -2.0] and metadata["texts"] == ["a", "\u20ac", ""]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"GGML" + bytes(20), "begins with b'GGML', version 0"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "version 50331648"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "ends within its header"),
        (_header(_text("key") + struct.pack("<IQ", 8, 2**62)), "ends within its metadata"),
        (_header(_text("key") + struct.pack("<IIQ", 9, 5, 2**62)), "ends within its metadata"),
        (_header(_text("key") + struct.pack("<IIQ", 9, 9, 1)), "key is of the unknown type 9"),
        (_header(_text("key") + struct.pack("<I", 99)), "key is of the unknown type 99"),
        (_header(_text("general.alignment") + struct.pack("<II", 4, 0)), "alignment is 0"),
        (_header(tensors=_text("odd") + struct.pack("<I", 2**31), num_tensors=1), "odd has 2147483648 dimensions"),
        (_header(tensors=_text("odd") + struct.pack("<I", 0), num_tensors=1), "odd has 0 dimensions"),
        (_header(tensors=_text("odd") + struct.pack("<IQIQ", 1, 8, 0, 2**60), num_tensors=1), "within its tensors"),
        (_header(tensors=_text("odd") + struct.pack("<IQIQ", 1, 8, 77, 0), num_tensors=1), "77 is not a valid"),
        (_header(tensors=_text("odd") + struct.pack("<IQIQ", 1, 33, 8, 0), num_tensors=1), "multiple"),
    ],
)
def test_nonsense_is_refused_with_its_reason(header: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_header(_array(header))


@given(data=st.data())
def test_damage_never_shows_as_anything_else(content: bytes, data: st.DataObject) -> None:
    """Flipped bytes in the header are either harmless or a ValueError; cutting it short always is one."""
    damaged = bytearray(content)
    for position in data.draw(st.lists(st.integers(0, 20_000), max_size=5)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        read_header(_array(bytes(damaged)))
    with pytest.raises(HeaderError):
        read_header(_array(content[: data.draw(st.integers(0, 20_000))]))
