"""The page for whoever runs the server names everything that there is, and nothing else."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route, Router
from switchgear.core.cli.field_docs import field_docs
from switchgear.core.config import ServerConfig, build_config, from_table
from switchgear.core.gateway.app import make_app
from switchgear.core.gateway.gateway import Gateway
from switchgear.core.gateway.http import Envelope
from switchgear.core.gateway.keys import Keys
from switchgear.core.gateway.service import Service

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def gateway(tiny_model: Path) -> Iterator[Gateway]:
    """A server that was never started."""
    service = Service(build_config(sections={"model": {"name": str(tiny_model)}}))
    yield Gateway(service, ServerConfig(), Keys({}))
    asyncio.run(service.close())


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def paths_of(gateway: Gateway) -> set[str]:
    app = make_app(gateway)
    assert isinstance(app, Envelope) and isinstance(app.app, Router)
    return {route.path.replace(":path", "") for route in app.app.routes if isinstance(route, Route)}


def test_every_endpoint_has_a_row(gateway: Gateway) -> None:
    rows = re.findall(r"^\| (`(?:GET|POST) .*?`) \|", section("Endpoints"), flags=re.MULTILINE)
    assert set(re.findall(r"`(?:GET|POST) (\S+)`", " ".join(rows))) == paths_of(gateway)


def test_the_commands_ask_for_what_there_is(gateway: Gateway) -> None:
    patterns = [re.sub(r"\{\w+\}", r"\\w+", path) for path in paths_of(gateway)]
    asked = re.findall(r"http://127\.0\.0\.1:8000(/[\w/.]+)", PAGE)
    assert len(asked) >= 8
    assert [path for path in asked if not any(re.fullmatch(pattern, path) for pattern in patterns)] == []


def test_every_option_has_a_row_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*)` \| (.*) \|$", section("Options"), flags=re.MULTILINE)
    documents, defaults = field_docs(ServerConfig), ServerConfig()
    assert [(field, default.strip('"'), meaning) for field, default, meaning in rows] == [
        (field, str(getattr(defaults, field)), documents[field]) for field in ServerConfig.__struct_fields__
    ]


def test_the_config_of_the_page_is_one() -> None:
    config = from_table(tomllib.loads(section("Options").partition("```toml\n")[2].partition("```")[0]))
    assert config.server.max_open_requests == 64
    assert config.plugins[0].name == "continuous_batching"


def test_every_metric_has_a_row(gateway: Gateway) -> None:
    rows = re.findall(r"^\| `(switchgear_\w+)` \|", section("Metrics"), flags=re.MULTILINE)
    there = re.findall(r"^# TYPE (switchgear_\w+)", gateway.metrics.page().decode(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(there)


def test_every_code_of_an_error_has_a_row() -> None:
    source = (ROOT / "core" / "gateway" / "openai" / "errors.py").read_text()
    codes = set(re.findall(r'code="(\w+)"', source))
    rows = section("What a client sees when something goes wrong")
    assert len(codes) >= 7
    assert [code for code in codes if f"`{code}`" not in rows] == []
