"""The command line: one subcommand a module, see `COMMANDS`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "doctor": "what this machine offers, what is missing and what that costs",
    "demo": "renders a scene into demo.mp4 and checks what is in it",
    "render": "renders a fragment shader into a video",
    "serve": "shows a scene or a video to browsers and programs",
    "view": "receives frames, shows how they come, or pipes them on",
    "bench": "how fast it is here, beside others (a first word says what: sockets)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    arguments = _parser().parse_args(argv)
    ended = _end_as_by_ctrl_c()
    try:
        # Only the wanted module, so that doctor works where demo's extras lack.
        command = importlib.import_module(f"aiozerocopy.commands.{arguments.command}")
        return int(command.main(arguments.arguments))
    except ModuleNotFoundError as error:
        return _report_missing(arguments.command, error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        # (the latter is what anyio.run makes of the former before Python 3.11)
        # What a shell reports for a program that a signal has ended.
        return 128 + (signal.SIGTERM if ended else signal.SIGINT)


def _end_as_by_ctrl_c() -> list[int]:
    """Let SIGTERM end things as well as Ctrl-C does; the list says that it came."""
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
    return came


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiozerocopy",
        description="Memory to pipes, sockets and FFmpeg without a copy.",
        epilog="\n".join(f"  {name:<8}{text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('aiozerocopy')}"
    )
    parser.add_argument("command", choices=COMMANDS, help="see below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="for the command; try --help"
    )
    return parser


def _report_missing(command: str, error: ModuleNotFoundError) -> int:
    name = (error.name or "").partition(".")[0]
    if name in ("", "aiozerocopy"):
        raise error  # a module of our own: that is a bug, show all of it
    print(
        f"aiozerocopy {command} needs {name}: pip install 'aiozerocopy[{command}]'",
        file=sys.stderr,
    )
    return 1
