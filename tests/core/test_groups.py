"""Which messages of a batch become one block, and where a batch is cut."""

import mmap
from array import array
from typing import Any

import pytest

from aiozerocopy._core import groups as module
from aiozerocopy._core.groups import Group, groups, joined

MOST, BYTES = module._GROUP_MESSAGES, module._GROUP_BYTES
SMALL = module._JOIN_BELOW


def _released() -> memoryview:
    view = memoryview(b"ab")
    view.release()
    return view


class TestJoined:
    @pytest.mark.parametrize("first", [b"ab", bytearray(b"ab"), memoryview(b"ab")])
    def test_small_ones(self, first: Any) -> None:
        assert joined([first, b"cd", b"e"]) == b"abcde"
        assert joined((first,)) == b"ab"

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            [b""],
            ["ab"],
            [5],
            [array("H", [1])],  # its len() counts numbers
            [memoryview(array("H", [1]))],
            [memoryview(bytes(4)).cast("B", (2, 2))],  # this len() counts rows
            [b"ab", array("H", [1])],
            [b"ab", "cd"],
            [b"ab", 5],
            [b"ab", memoryview(b"abcd")[::2], memoryview(array("H", [1]))],
            [b"ab", _released()],
            [b"ab", memoryview(mmap.mmap(-1, 2))],  # (a file mapping may be truncated)
            type("Own", (list,), {})([b"ab"]),
        ],
    )
    def test_what_does_not_look_like_bytes(self, messages: Any) -> None:
        assert joined(messages) == b""

    @pytest.mark.parametrize(
        ("count", "size", "is_joined"),
        [
            (MOST, 1, True),
            (MOST + 1, 1, False),
            (BYTES // SMALL, SMALL, True),
            (BYTES // SMALL + 1, SMALL, False),
            (1, SMALL, True),
            (1, SMALL + 1, False),
            (3, SMALL, True),
            (3, SMALL + 1, False),
        ],
    )
    def test_up_to_which_size(self, count: int, size: int, is_joined: bool) -> None:
        block = joined([bytes(size)] * count)
        assert len(block) == (count * size if is_joined else 0)


class TestGroups:
    def test_one_of_all_that_fits(self) -> None:
        (group,) = groups([b"ab", b"", array("H", [1, 2])])
        assert group.sizes == [2, 0, 4]
        assert group.nbytes == 6
        assert group.pieces() == (b"ab" + array("H", [1, 2]).tobytes(),)

    @pytest.mark.parametrize(
        ("size", "count", "lengths"),
        [
            (1, MOST, [MOST]),
            (1, 2 * MOST + 1, [MOST, MOST, 1]),
            (BYTES, 2, [1, 1]),
            (BYTES // 2, 5, [2, 2, 1]),
            (BYTES // 2 - 1, 4, [3, 1]),
        ],
    )
    def test_where_it_is_cut(self, size: int, count: int, lengths: list[int]) -> None:
        cut = list(groups(bytes(size) for _ in range(count)))
        assert [len(group.sizes) for group in cut] == lengths
        assert [group.nbytes for group in cut] == [size * n for n in lengths]

    @pytest.mark.parametrize("more", [0, 1])
    def test_large_ones_stay_in_place(self, more: int) -> None:
        messages = [bytes(SMALL + more) for _ in range(3)]
        (group,) = groups(messages)
        assert len(group.pieces()) == (3 if more else 1)

    def test_no_more_is_taken_than_a_group_needs(self) -> None:
        taken = []

        def messages() -> Any:
            for i in range(3):
                taken.append(i)
                yield bytes(BYTES)

        cut = groups(messages())
        assert isinstance(next(cut), Group)
        assert taken == [0]
