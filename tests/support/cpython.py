"""Runs CPython's own tests of asyncio, on loops whose connections are ours.

It is given a module, what the names of the tests are to have in them, and what they are
not to have, as JSON; and prints a line of JSON: how many passed, and which failed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import unittest
import warnings
from typing import Any

from aiozerocopy import transport
from aiozerocopy.transport.writing import Writing


class Loop(asyncio.SelectorEventLoop):
    """TLS stays asyncio's own."""

    async def sendfile(  # type: ignore[override]
        self, to: Any, file: Any, *args: Any, **options: Any
    ) -> int:
        if isinstance(to, Writing):
            return await transport.sendfile(to, file, *args, **options)
        return await super().sendfile(to, file, *args, **options)


def _ours(name: str) -> Any:
    theirs, ours = getattr(asyncio.SelectorEventLoop, name), getattr(transport, name)

    async def method(self: Loop, *args: Any, **options: Any) -> Any:
        if options.get("ssl"):
            return await theirs(self, *args, **options)
        return await ours(*args, **options)

    return method


for _name in (
    *("create_connection", "create_unix_connection", "connect_accepted_socket"),
    *("create_server", "create_unix_server"),
    *("connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
):
    setattr(Loop, _name, _ours(_name))


def _patch() -> None:
    from asyncio import unix_events

    policy: Any = unix_events._UnixDefaultEventLoopPolicy
    policy._loop_factory = Loop
    asyncio.SelectorEventLoop = Loop


class _Result(unittest.TextTestResult):
    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        gc.collect()  # what one has left shall not warn in another


def _all(suite: Any) -> Any:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _all(each)
        else:
            yield each


def main() -> None:
    module, wanted, left_out = json.loads(sys.argv[1])
    _patch()
    gc.freeze()
    warnings.simplefilter("ignore", DeprecationWarning)
    suite = unittest.TestSuite()
    for test in _all(unittest.defaultTestLoader.loadTestsFromName(module)):
        name = ".".join(test.id().split(".")[-2:])
        if any(each in name for each in wanted) and not any(
            each in name for each in left_out
        ):
            suite.addTest(test)
    kind: Any = _Result
    runner = unittest.TextTestRunner(verbosity=2, resultclass=kind)
    result: Any = runner.run(suite)
    failed = [test.id() for test, _ in (*result.failures, *result.errors)]
    passed = result.testsRun - len(failed) - len(result.skipped)
    print(json.dumps({"passed": passed, "failed": failed}))


if __name__ == "__main__":
    main()
