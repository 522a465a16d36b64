"""`switchgear doctor --from`: the operator's checklist over a server that runs."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RequestError
from .admin import message_of, read_key
from .output import print_json

if TYPE_CHECKING:
    from ..lab.checklist import Check
    from ..lab.metrics_page import MetricsPage

TIMEOUT = 30.0
"""Seconds."""


def run_checkup(arguments: Namespace) -> int:
    """Print the checklist; the exit code is 0 whatever it says, since it advises and knows no objective."""
    from ..lab.checklist import Server, check_server
    from ..lab.cost_model import CostModel

    over = arguments.over or 0.0
    if not 0 <= over < float("inf"):
        raise ConfigError(f"--over is {over:g}: it must be 0 or more seconds")
    model = CostModel.load(arguments.profile) if arguments.profile else None
    key = read_key(arguments.api_key_file) if arguments.api_key_file else ""
    page = look(arguments.source, key, over)
    checks = check_server(Server(page, read_plan(arguments.source, key), model))
    if arguments.json:
        print_json({"from": arguments.source, "over": over, "checks": [asdict(check) for check in checks]})
    else:
        print_checks(checks)
    return 0


def look(source: str, key: str, over: float) -> MetricsPage:
    """The page, or what was counted in so many seconds between two looks at it."""
    from ..lab.metrics_page import read_page

    page = read_page(read(source, key))
    if not over:
        return page
    time.sleep(over)
    return read_page(read(source, key)).since(page)


def read_plan(source: str, key: str) -> dict[str, Any]:
    """The plan of the same server; empty where it has none to show, since the checklist then says what is missing."""
    if not is_url(source):
        return {}
    try:
        plan = json.loads(read(plan_url(source), key))
    except (RequestError, ValueError):
        return {}
    return plan if isinstance(plan, dict) and "hooks" in plan else {}


def plan_url(source: str) -> str:
    base = source.partition("?")[0].rstrip("/")
    return base.removesuffix("/metrics") + "/plan"


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def read(source: str, key: str) -> str:
    """A URL's body, or a file's text. Raises RequestError with the reason."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        if not is_url(source):
            return Path(source).read_text(encoding="utf-8")
        request = Request(source, headers={"authorization": f"Bearer {key}"} if key else {})
        with urlopen(request, timeout=TIMEOUT) as answer:
            text: str = answer.read().decode()
            return text
    except HTTPError as error:
        raise RequestError(message_of(error.read(), error.code)) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise RequestError(
            f"cannot read {source} ({reason}): give --from the /metrics of a server, such as "
            "http://127.0.0.1:8000/metrics, or a file with what it said"
        ) from error


def print_checks(checks: list[Check]) -> None:
    width = max(len(check.subject) for check in checks)
    group = ""
    for check in checks:
        if check.group != group:
            print(*([""] if group else []), check.group, sep="\n")
            group = check.group
        print(f"  {check.state:<8}{check.subject:<{width}}  {check.value}")
        for text in filter(None, (check.meaning, f"try: {check.remedy}" if check.remedy else "")):
            print(f"  {'':<8}{'':<{width}}  {text}")
