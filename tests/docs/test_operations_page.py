"""The page for whoever runs the server names everything that there is, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
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
