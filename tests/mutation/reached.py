"""A plugin of pytest that notes which lines of the core each quick test reaches."""

import json
import os
import sys
from collections.abc import Generator
from types import CodeType
from typing import Any

import pytest

# The links and loops that are used: they suffice for the code in Python.
LINKS = {"asyncio": {"pipe", "unix"}, "trio": {"pipe"}}
TOOL = 4

_lines: set[tuple[str, int]] = set()
_failed: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _is_quick(item)]


def _is_quick(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("slow", "builds", "quiet")):
        return False
    given = getattr(getattr(item, "callspec", None), "params", {})
    links = [given[it] for it in ("link", "clogged", "some") if it in given]
    loop = given.get("anyio_backend", "asyncio")
    return loop in LINKS and LINKS[loop].issuperset(links)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write a line: the test, whether it passed, and the lines that threads reached."""
    monitoring: Any = sys.monitoring
    _lines.clear()
    monitoring.restart_events()
    try:
        return (yield)
    finally:
        with open(os.environ["AZC_REACHED"], "a") as file:
            fact = (item.nodeid, item.nodeid not in _failed, sorted(_lines))
            print(json.dumps(fact), file=file)


def pytest_configure() -> None:
    monitoring: Any = sys.monitoring

    def note(code: CodeType, line: int) -> Any:
        folder, _, name = code.co_filename.rpartition("/")
        if folder.endswith("aiozerocopy/_core"):
            _lines.add((name, line))
        return monitoring.DISABLE

    monitoring.use_tool_id(TOOL, "reached")
    monitoring.register_callback(TOOL, monitoring.events.LINE, note)
    monitoring.set_events(TOOL, monitoring.events.LINE)
