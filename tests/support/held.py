"""The memory that C still has, or may have."""

from typing import Any

from aiozerocopy._core.borrows import borrowed


def held() -> list[Any]:
    """All of it.  (An operation that is ready has room for one, and no memory.)"""
    return [
        view for views in list(borrowed.values()) for view in views if view is not None
    ]
