"""`pytest --switchgear-plugin NAME` holds a plugin to its word: every check of the kit is a test item of its own.

Loaded by pytest in every project where switchgear is installed, so it imports nothing of the kit until it is asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .checks import Check
    from .equivalence import Oracle
    from .subject import Subject

MARKER = "switchgear"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("switchgear", "the verification kit of switchgear")
    group.addoption(
        "--switchgear-plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="hold this installed plugin to its word, beside any other tests; may be repeated",
    )
    group.addoption(
        "--switchgear-set",
        metavar="plugins.NAME.OPTION=VALUE",
        action="append",
        default=[],
        help="an option of a plugin that is verified; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: a check of switchgear's verification kit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.switchgear_plugin:
        items.extend(kit_items(session))


def kit_items(session: pytest.Session) -> Iterator[pytest.Item]:
    """The checks of every plugin that was named, collected and reported as pytest does for files."""
    from .equivalence import Oracle

    directory = tempfile.TemporaryDirectory(prefix="switchgear-kit-")
    session.config.add_cleanup(directory.cleanup)
    oracle = Oracle(Path(directory.name))
    for subject in subjects(session.config):
        kit = KitPlugin.from_parent(session, name=subject.name, nodeid=subject.name, subject=subject, oracle=oracle)
        report = kit.ihook.pytest_make_collect_report(collector=kit)
        kit.ihook.pytest_collectreport(report=report)
        yield from report.result


def subjects(config: pytest.Config) -> list[Subject]:
    """The plugins that were named, with the options that were set. Raises UsageError for those that do not exist."""
    from ..config import build_config
    from ..errors import SwitchgearError
    from .subject import Subject, find_class

    names: list[str] = config.option.switchgear_plugin
    try:
        for name in names:
            find_class(name)
        sections: dict[str, Any] = {"plugins": {name: {} for name in names}}
        entries = build_config(sections=sections, overrides=config.option.switchgear_set).plugins
    except SwitchgearError as error:
        raise pytest.UsageError(str(error)) from error
    return [Subject(entry.name, entry.options) for entry in entries]


class KitPlugin(pytest.Collector):
    """One plugin, the parent of its checks."""

    def __init__(self, *, subject: Subject, oracle: Oracle, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.subject, self.oracle = subject, oracle

    def collect(self) -> Iterator[KitItem]:
        from .checks import checks_of

        for check in checks_of(self.subject, self.oracle):
            yield KitItem.from_parent(self, name=str(check), check=check)


class KitItem(pytest.Item):
    """One check of one plugin."""

    def __init__(self, *, check: Check, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.check = check
        self.add_marker(MARKER)

    def runtest(self) -> None:
        from .failure import NotApplicable

        try:
            self.check.run()
        except NotApplicable as reason:
            pytest.skip(str(reason))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """For what the plugin did wrong its author's text, and the history that shows it; else the traceback."""
        from .failure import KitFailure

        if isinstance(excinfo.value, KitFailure):
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ())])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid
