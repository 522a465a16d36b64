import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from switchgear.core.errors import ModelError
from switchgear.core.model.weights import SafetensorsReader
from switchgear.core.records import LinearPart, LinearSpec

QKV = LinearSpec(
    "attn.qkv_proj",
    "qkv",
    0,
    8,
    (LinearPart("attn.q_proj", 12), LinearPart("attn.k_proj", 6), LinearPart("attn.v_proj", 6)),
    has_bias=True,
)
OUT = LinearSpec("attn.o_proj", "o", 0, 12, (LinearPart("attn.o_proj", 8),), has_bias=True)
TENSORS = {
    "attn.q_proj.weight": torch.randn(12, 8),
    "attn.k_proj.weight": torch.randn(6, 8),
    "attn.v_proj.weight": torch.randn(6, 8),
    "attn.q_proj.bias": torch.randn(12),
    "attn.k_proj.bias": torch.randn(6),
    "attn.v_proj.bias": torch.randn(6),
    "attn.o_proj.weight": torch.randn(8, 12),
    "attn.o_proj.bias": torch.randn(8),
}
JOINED = torch.cat([TENSORS[f"attn.{part}_proj.weight"] for part in "qkv"])


@pytest.fixture
def reader(tmp_path: Path) -> SafetensorsReader:
    names = sorted(TENSORS)
    for file, part in (("a", names[::2]), ("b", names[1::2])):
        save_file({name: TENSORS[name] for name in part}, tmp_path / f"{file}.safetensors")
    return SafetensorsReader([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


@pytest.fixture
def fused_reader(tmp_path: Path) -> SafetensorsReader:
    save_file({"attn.qkv_proj.weight": JOINED}, tmp_path / "fused.safetensors")
    return SafetensorsReader([tmp_path / "fused.safetensors"])


def _is_mapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is a file's."""
    address = tensor.untyped_storage().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        first, last = (int(bound, 16) for bound in fields[0].split("-"))
        if first <= address < last:
            return len(fields) == 6 and fields[5].endswith(".safetensors")
    return False


def test_names_and_tensors_of_all_shards(reader: SafetensorsReader) -> None:
    assert reader.names() == frozenset(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(reader.read(name), tensor)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tensor_is_not_copied(reader: SafetensorsReader, fused_reader: SafetensorsReader) -> None:
    assert _is_mapped(reader.read("attn.q_proj.weight"))
    assert _is_mapped(reader.fused(OUT, "weight", torch.float32))
    assert _is_mapped(fused_reader.fused(QKV, "weight", torch.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_expert_is_a_view_of_the_stack_of_all(tmp_path: Path) -> None:
    stack = torch.randn(3, 8, 4)
    save_file({"experts.gate_up_proj": stack}, tmp_path / "stack.safetensors")
    reader = SafetensorsReader([tmp_path / "stack.safetensors"])
    parts = (LinearPart("experts.1.gate_proj", 4), LinearPart("experts.1.up_proj", 4))
    spec = LinearSpec(
        "experts.1.gate_up_proj", "experts", 0, 4, parts, num_experts=3, stacked=("experts.gate_up_proj", 1)
    )
    expert = reader.fused(spec, "weight", torch.float32)
    assert torch.equal(expert, stack[1]) and _is_mapped(expert)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_parts_are_joined_in_order(reader: SafetensorsReader, dtype: torch.dtype) -> None:
    fused = reader.fused(QKV, "weight", dtype)
    assert fused.dtype is dtype and torch.equal(fused, JOINED.to(dtype))
    bias = reader.fused(QKV, "bias", dtype)
    assert torch.equal(bias, torch.cat([TENSORS[f"attn.{part}_proj.bias"] for part in "qkv"]).to(dtype))


def test_fused_checkpoint_is_taken_as_it_is(fused_reader: SafetensorsReader) -> None:
    assert torch.equal(fused_reader.fused(QKV, "weight", torch.float32), JOINED)
    assert torch.equal(fused_reader.fused(QKV, "weight", torch.bfloat16), JOINED.to(torch.bfloat16))


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_rank_holds_its_rows_of_each_part(
    reader: SafetensorsReader, fused_reader: SafetensorsReader, rank: int, is_fused: bool
) -> None:
    shard = (fused_reader if is_fused else reader).fused(
        dataclasses.replace(QKV, shard=(rank, 3)), "weight", torch.float32
    )
    parts = [TENSORS[f"attn.{part}_proj.weight"].chunk(3)[rank] for part in "qkv"]
    assert torch.equal(shard, torch.cat(parts)) and shard.is_contiguous()


def test_row_parallel_linear_is_split_by_columns_and_keeps_its_bias(reader: SafetensorsReader) -> None:
    spec = dataclasses.replace(OUT, shard=(1, 3))
    assert torch.equal(reader.fused(spec, "weight", torch.float32), TENSORS["attn.o_proj.weight"][:, 4:8])
    assert torch.equal(reader.fused(spec, "bias", torch.float32), TENSORS["attn.o_proj.bias"])


def test_rows_that_do_not_divide_are_refused(reader: SafetensorsReader) -> None:
    with pytest.raises(ModelError, match=r"attn.qkv_proj has 12 rows, not divisible by 5 ranks"):
        reader.fused(dataclasses.replace(QKV, shard=(0, 5)), "weight", torch.float32)


def test_a_tied_head_reads_the_embedding_even_if_its_own_is_stored(tmp_path: Path) -> None:
    embedding = torch.randn(4, 2)
    save_file({"embed.weight": embedding, "lm_head.weight": torch.zeros(4, 2)}, tmp_path / "m.safetensors")
    spec = LinearSpec("lm_head", "head", -1, 2, (LinearPart("embed", 4),), tied_to="embed")
    assert torch.equal(SafetensorsReader([tmp_path / "m.safetensors"]).fused(spec, "weight", torch.float32), embedding)


def test_missing_tensor_is_named_with_the_file(fused_reader: SafetensorsReader) -> None:
    with pytest.raises(ModelError, match=r"the tensor attn.o_proj.weight is not in .*fused\.safetensors"):
        fused_reader.fused(OUT, "weight", torch.float32)


def test_wrong_shape_is_refused_with_both_shapes(reader: SafetensorsReader) -> None:
    spec = dataclasses.replace(OUT, in_features=16)
    with pytest.raises(ModelError, match=r"is \[8, 12\] where config.json means \[8, 16\]"):
        reader.fused(spec, "weight", torch.float32)


@pytest.mark.parametrize("num_bytes", [0, 4, 60, -1])
def test_truncated_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match=r"truncated or not a safetensors file.*fetch the model again"):
        SafetensorsReader([path])


def test_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        SafetensorsReader([tmp_path / "model.safetensors"])


LOAD = """
import json, sys
from pathlib import Path
import torch
from switchgear.core.model.weights import SafetensorsReader
from switchgear.core.records import LinearPart, LinearSpec


def anonymous_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


torch.zeros(8).to(torch.bfloat16).to(torch.float32)  # the library's own start-up memory
reader = SafetensorsReader([Path(sys.argv[1])])
before = anonymous_bytes()
peak = before
loaded = []
for layer in range(6):
    parts = tuple(LinearPart(f"{layer}.{part}", 1024) for part in ("q", "k", "v"))
    specs = (
        LinearSpec(f"{layer}.qkv", "qkv", layer, 1024, parts),
        LinearSpec(f"{layer}.o", "o", layer, 1024, (LinearPart(f"{layer}.o", 1024),)),
    )
    for spec in specs:
        loaded.append(reader.fused(spec, "weight", getattr(torch, sys.argv[2])))
        loaded[-1].sum()  # touches every page
        peak = max(peak, anonymous_bytes())
print(json.dumps({"grown": peak - before, "weights": sum(tensor.nbytes for tensor in loaded)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_anonymous_memory_at_load_stays_near_the_weights(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"{layer}.{part}.weight": torch.rand(1024, 1024) for layer in range(6) for part in "qkvo"}, path)
    output = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), dtype], capture_output=True, text=True, check=True
    ).stdout
    memory = json.loads(output)
    assert memory["weights"] == 6 * 4 * 1024 * 1024 * getattr(torch, dtype).itemsize
    assert memory["grown"] <= 1.2 * memory["weights"]
