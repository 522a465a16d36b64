import errno
import os
import time
from pathlib import Path

import pytest
from switchgear.core.errors import ModelError
from switchgear.core.model.cache import ABANDONED_AFTER, cache_folder, publish, staging


def test_cache_follows_the_argument_then_xdg_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
    assert cache_folder() == tmp_path / "xdg" / "switchgear"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "switchgear"


@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt])
def test_staging_leaves_nothing(tmp_path: Path, failure: type[BaseException] | None) -> None:
    def stage() -> None:
        with staging(tmp_path) as folder:
            (folder / "half").write_text("written")
            if failure is not None:
                raise failure

    if failure is None:
        stage()
    else:
        with pytest.raises(failure):
            stage()
    assert list((tmp_path / "staging").iterdir()) == []


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    reason = r"the disk of .* is full; free some space or set XDG_CACHE_HOME"
    with pytest.raises(ModelError, match=reason), staging(tmp_path), open("/dev/full", "w", encoding="utf-8") as file:
        file.write("x")


def test_cache_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match=r"cannot write to .*file"), staging(tmp_path / "file"):
        pass


def test_other_system_errors_are_not_dressed_up(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="surprise"), staging(tmp_path):
        raise OSError(errno.EIO, "surprise")


def test_leftovers_of_killed_processes_go_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / "staging" / "old", tmp_path / "staging" / "fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
        (folder / "half").write_text("written")
    stale = time.time() - ABANDONED_AFTER - 60
    os.utime(old, (stale, stale))
    with staging(tmp_path):
        assert not old.exists()
        assert fresh.exists()


def test_published_file_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "new").write_text("new")
    publish(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"
    assert not (tmp_path / "new").exists()


def test_of_two_published_folders_the_first_stays(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
        publish(tmp_path / name, tmp_path / "made" / "target")
    assert (tmp_path / "made" / "target" / "content").read_text() == "first"
