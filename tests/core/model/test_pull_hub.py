import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.pull_hub import fetch_snapshot, hub_target
from switchgear.core.testing.tiny import make_tiny_model

COMMIT = "a" * 40


class Hub(http.server.ThreadingHTTPServer):
    """A model hub on this machine with one model, `owner/tiny`, in the protocol of the real one."""

    def __init__(self, model: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.model = model
        self.requested: list[str] = []
        self.cut: str | None = None
        """A file of which only half is sent before the connection breaks."""
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files = sorted(file for file in self.server.model.rglob("*") if file.is_file())
        names = [file.relative_to(self.server.model).as_posix() for file in files]
        match self.path.strip("/").split("/"):
            case ["api", "models", "owner", "tiny", "revision", _]:
                siblings = [{"rfilename": name} for name in names]
                self._send(json.dumps({"id": "owner/tiny", "sha": COMMIT, "siblings": siblings}).encode())
            case ["api", "models", "owner", "tiny", "tree", _]:
                sizes = zip(names, files, strict=True)
                tree = [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": "b" * 40} for name, file in sizes
                ]
                self._send(json.dumps(tree).encode())
            case ["owner", "tiny", "resolve", _, *name]:
                self._send((self.server.model / Path(*name)).read_bytes())
            case ["api", "models", "owner", "gated", *_]:
                self._refuse(403, "GatedRepo")
            case ["api", "models", "owner", "broken", *_]:
                self._refuse(500, "")
            case _:
                self._refuse(404, "RepoNotFound")

    def _send(self, data: bytes) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.server.requested.append(name)
            self.wfile.write(data[: len(data) // 2] if name == self.server.cut else data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    model = make_tiny_model(tmp_path / "model")
    (model / "pytorch_model.bin").write_bytes(b"not wanted")
    (model / "README.md").write_text("not wanted")
    (model / "onnx").mkdir()
    (model / "onnx" / "config.json").write_text("{}")
    with Hub(model) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _assert_nothing_left(cache: Path) -> None:
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_wanted_files_are_fetched_once(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    directory = fetch_snapshot("owner/tiny", cache, progress=False, endpoint=hub.endpoint)
    assert directory == hub_target("owner/tiny", cache)
    fetched = {file.name: file.read_bytes() for file in directory.iterdir()}
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert fetched == {name: (hub.model / name).read_bytes() for name in wanted}
    num_requests = len(hub.requested)
    assert fetch_snapshot("owner/tiny", cache, progress=False, endpoint=hub.endpoint) == directory
    assert len(hub.requested) == num_requests


def test_bars_go_to_stderr_or_nowhere(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch_snapshot("owner/tiny", tmp_path / "quiet", progress=False, endpoint=hub.endpoint)
    assert capfd.readouterr() == ("", "")
    fetch_snapshot("owner/tiny", tmp_path / "loud", progress=True, endpoint=hub.endpoint)
    output, errors = capfd.readouterr()
    assert output == "" and "100%" in errors


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("owner/absent", "the hub has no model 'owner/absent' that you may read; check the id or run: hf auth login"),
        ("owner/gated", "owner/gated asks for its licence to be accepted"),
        ("owner/broken", r"the hub did not deliver owner/broken \(.*\); check the network"),
        ("owner/bad--name", "the hub has no model 'owner/bad--name'"),
    ],
)
def test_refusals_of_the_hub_are_one_sentence(hub: Hub, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        fetch_snapshot(name, tmp_path / "cache", progress=False, endpoint=hub.endpoint)
    _assert_nothing_left(tmp_path / "cache")


def test_without_network_the_hub_is_said_to_be_out_of_reach(hub: Hub, tmp_path: Path) -> None:
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ModelError, match=r"the hub did not deliver owner/tiny \(.*\); check the network"):
        fetch_snapshot("owner/tiny", tmp_path / "cache", progress=False, endpoint=hub.endpoint)
    _assert_nothing_left(tmp_path / "cache")


def test_repository_without_safetensors_is_refused(hub: Hub, tmp_path: Path) -> None:
    (hub.model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"owner/tiny has no model\.safetensors"):
        fetch_snapshot("owner/tiny", tmp_path / "cache", progress=False, endpoint=hub.endpoint)
    _assert_nothing_left(tmp_path / "cache")


def test_broken_transfer_leaves_nothing(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the client waits before each of its retries
    hub.cut = "model.safetensors"
    with pytest.raises(ModelError, match=r"the hub did not deliver owner/tiny \(peer closed connection.*\)"):
        fetch_snapshot("owner/tiny", tmp_path / "cache", progress=False, endpoint=hub.endpoint)
    _assert_nothing_left(tmp_path / "cache")
