"""A headless Chromium, driven by its command line alone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # so that a page which asks for something elsewhere is seen to fail
    "--host-resolver-rules=MAP * ~NOTFOUND",
)

needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser here, that is none of {', '.join(NAMES)}")


def chromium(folder: Path, *arguments: str) -> str:
    """What it prints. folder: for its profile."""
    assert BROWSER is not None
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@dataclass(frozen=True, slots=True)
class View:
    """A page in a window of so many pixels, and what to find out about it."""

    page: str
    width: int
    script: str
    """The body of a function that is given `window` and `document` of the page; what it returns is the answer."""


def look(folder: Path, views: Sequence[View]) -> list[Any]:
    """The answers, from one start of the browser.

    A window of the browser itself is never as narrow as a phone, a frame is.
    """
    frames = "".join(
        f'<iframe style="border: 0; width: {view.width}px; height: 800px" srcdoc="{html.escape(view.page)}"></iframe>'
        for view in views
    )
    looks = ",".join(f"(window, document) => {{ {view.script} }}" for view in views)
    watch = f"""<pre id="answers"></pre><script>
    addEventListener("load", () => {{
      const frames = document.querySelectorAll("iframe");
      const ask = (look, place) => {{
        try {{ return look(frames[place].contentWindow, frames[place].contentDocument); }}
        catch (error) {{ return String(error); }}
      }};
      document.getElementById("answers").textContent = JSON.stringify([{looks}].map(ask));
    }});
    </script>"""
    (folder / "frames.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{frames}{watch}", encoding="utf-8")
    seen = chromium(folder, "--dump-dom", (folder / "frames.html").as_uri())
    found = re.search(r'<pre id="answers">(.*?)</pre>', seen, flags=re.DOTALL)
    assert found is not None and found.group(1), seen[-2000:]
    answers: list[Any] = json.loads(html.unescape(found.group(1)))
    return answers


def print_page(folder: Path, page: str) -> Path:
    """A PDF of it."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    target = folder / "page.pdf"
    chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={target}", (folder / "page.html").as_uri())
    return target
