import gzip
from pathlib import Path

import pytest
from switchgear.core.errors import ConfigError
from switchgear.core.lab.prompt_files import read_prompts


def test_lines_of_text(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("One?\n\n  Two?  \r\nThree?")
    assert read_prompts(file) == [("One?",), ("Two?",), ("Three?",)]


def test_json_lines_of_every_kind_packed_or_not(tmp_path: Path) -> None:
    text = (
        '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n'
        '{"question": "How many?", "answer": "#### 3"}\n'
        '{"uid": "x", "prompt": "line\u2028separator"}\n'
        '{"text": "plain"}\n'
    )
    expected = [("Write.", "Again."), ("How many?",), ("line\u2028separator",), ("plain",)]
    plain, packed = tmp_path / "prompts.jsonl", tmp_path / "prompts.jsonl.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_prompts(plain) == read_prompts(packed) == expected


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b" \n", "has no prompts"),
        ("a.jsonl", b"{\n", "line 1: this is no JSON"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "line 2: this is no JSON object"),
        ("a.jsonl", b'{"answer": "x"}', "there is no prompt, which is a field turns, question, prompt or text"),
        ("a.jsonl", b'{"turns": []}', "'turns' must be a list of texts"),
        ("a.jsonl", b'{"prompt": 3}', "'prompt' must be a text"),
        ("a.txt", b"\xff\xfe", "cannot read"),
        ("a.jsonl.gz", b"not packed", "cannot read"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], "cannot read"),
    ],
)
def test_what_is_no_file_of_prompts_is_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_prompts(tmp_path / "nothing.txt")
