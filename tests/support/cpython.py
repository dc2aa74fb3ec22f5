"""Runs CPython's own tests of asyncio, on loops whose connections are ours.

It is given a module, what the names of the tests are to have in them, and what they are
not to have, as JSON; and prints a line of JSON: how many passed, and which failed.
"""

import asyncio
import gc
import json
import sys
import unittest
import warnings
from typing import Any

from aiozerocopy.transport import EventLoop


def _patch() -> None:
    from asyncio import unix_events

    policy: Any = unix_events._UnixDefaultEventLoopPolicy
    policy._loop_factory = EventLoop
    asyncio.SelectorEventLoop = EventLoop


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
