"""Messages over a UNIX socket and TCP loopback, big and small."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozerocopy.bench.feeding import (
    LOOPS,
    Feeder,
    Lab,
    in_c,
    in_python,
    tcp_link,
    unix_link,
)
from aiozerocopy.bench.racing import Comparison, Headline, Options, Race, Work

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
BATCH = 64
DRAIN = "uvloop write + drain"


def races(lab: Lab, options: Options) -> list[Race]:
    links = {"UNIX": unix_link, "TCP": tcp_link}
    sizes = {"6 MB": 6_000_000, "1 MiB": MIB}
    if options.quick:
        del links["TCP"], sizes["6 MB"]
    big = [
        big_messages(lab, options, f"{size_name}, {link_name}", link, size)
        for link_name, link in links.items()
        for size_name, size in sizes.items()
    ]
    return [*big, small_messages(lab, options), small_batches(lab, options)]


def big_messages(
    lab: Lab,
    options: Options,
    title: str,
    link: Callable[[], tuple[int, int]],
    size: int,
) -> Race:
    feeder = partial(Feeder, lab=lab, link=link)
    uvloop = partial(feeder, needs=("uvloop",))
    ours = [
        feeder("send, asyncio", command=in_python("send")),
        uvloop("send, uvloop", command=in_python("send", "uvloop")),
        feeder("put 2 in flight, asyncio", command=in_python("put", in_flight=2)),
        uvloop(
            "put 3 in flight, uvloop", command=in_python("put", "uvloop", in_flight=3)
        ),
    ]
    rivals = [
        feeder("C send loop", command=in_c()),
        uvloop("uvloop write+drain", command=in_python("write_and_drain", "uvloop")),
        uvloop(
            "uvloop write+drain, limit 2 messages",
            command=in_python("write_and_drain", "uvloop", limit=2 * size),
        ),
    ]
    others = [feeder("asyncio write+drain", command=in_python("write_and_drain"))]
    comparisons = [
        Comparison(one.name, [rival.name for rival in rivals]) for one in ours
    ]
    messages = round((8_000_000 if options.quick else 1_500_000_000) / size)
    work = Work(
        size, messages - messages % 4, warm=4 if options.quick else 40, buffers=4
    )
    return Race(
        title,
        work,
        [*ours, *rivals, *others],
        comparisons,
        headlines=big_headlines(title) if size != MIB or options.quick else [],
        brief=100,
    )


def big_headlines(title: str) -> list[Headline]:
    """On one loop, ours beside its own; and beside C, without any loop."""
    size, link = title.split(", ")
    work = f"{size} messages, {link}"
    headline = partial(Headline, work=f"{work}: await send")
    written = "uvloop write+drain"
    return [
        headline("send, uvloop", [written], against=DRAIN, front=title == "6 MB, UNIX"),
        headline("send, uvloop", ["C send loop"], against="C loop of send"),
        Headline(
            "put 3 in flight, uvloop",
            [written],
            work=f"{work}: put, 3 in flight",
            against=DRAIN,
        ),
    ]


def small_messages(lab: Lab, options: Options) -> Race:
    contestants: list[Feeder] = []
    comparisons: list[Comparison] = []
    for loop, needs in LOOPS:
        for kind in ("bytes", "memoryview"):
            ours, theirs = (
                Feeder(
                    f"{way}, {loop}, {kind}",
                    lab,
                    in_python(way, loop, kind=kind),
                    unix_link,
                    needs,
                )
                for way in ("send", "sock_sendall")
            )
            contestants += [ours, theirs]
            comparisons.append(Comparison(ours.name, [theirs.name]))
    headlines = [
        Headline(
            f"send, {loop}, {kind}",
            [f"sock_sendall, {loop}, {kind}"],
            work=f"1 KiB messages, UNIX ({kind}): await send",
            against=f"loop.sock_sendall, {loop}",
            unit="messages",
        )
        for loop, kind in (("asyncio", "bytes"), ("asyncio", "memoryview"))
    ]
    return Race(
        "1 KiB, UNIX, one await each",
        kib(options, 200_000),
        contestants,
        comparisons,
        headlines=headlines,
        brief=600 * BATCH,
    )


def small_batches(lab: Lab, options: Options) -> Race:
    ours = [
        Feeder(
            f"send_many of 64, {loop}",
            lab,
            in_python("send_many", loop),
            unix_link,
            needs,
        )
        for loop, needs in LOOPS
    ]
    uvloop = partial(Feeder, lab=lab, link=unix_link, needs=("uvloop",))
    each = uvloop("uvloop write+drain", command=in_python("write_and_drain", "uvloop"))
    lines = uvloop(
        "uvloop writelines of 64+drain",
        command=in_python("writelines_and_drain", "uvloop"),
    )
    joined = Feeder(
        "asyncio writelines of 64+drain",
        lab,
        in_python("writelines_and_drain"),
        unix_link,
    )
    comparisons = [
        Comparison(one.name, [rival.name]) for rival in (each, lines) for one in ours
    ]
    contestants = [*ours, each, lines, joined]
    headline = partial(
        Headline,
        work=f"1 KiB messages, UNIX: send_many of {BATCH}",
        unit="messages",
    )
    headlines = [
        headline("send_many of 64, uvloop", [each.name], against=DRAIN),
        headline(
            "send_many of 64, uvloop", [lines.name], against="uvloop writelines + drain"
        ),
        headline(
            "send_many of 64, asyncio",
            [joined.name],
            against="asyncio writelines + drain",
        ),
    ]
    return Race(
        "1 KiB, UNIX, 64 at a time",
        kib(options, 1_000_000),
        contestants,
        comparisons,
        headlines=headlines,
        brief=5000 * BATCH,
    )


def kib(options: Options, messages: int) -> Work:
    """Messages of 1 KiB, in whole batches."""
    if options.quick:
        messages //= 100
    return Work(1024, messages - messages % BATCH, warm=BATCH * 100, buffers=BATCH)
