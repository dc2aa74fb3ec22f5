"""Runs CPython's own tests of asyncio, on loops whose connections are ours.

Its argument is JSON: a module, words one of which must be in a test's name, and words
that must not.  It prints JSON: how many tests passed, and which failed.
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
        gc.collect()  # garbage of this test must not warn in the next


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
