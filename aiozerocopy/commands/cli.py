"""The command line: each subcommand is a module, see `COMMANDS`."""

from __future__ import annotations

import importlib
import shlex
import sys
from argparse import REMAINDER
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiozerocopy._core import extras
from aiozerocopy.commands import ending
from aiozerocopy.commands.options import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "doctor": "says what this machine offers, what is missing and what that costs",
    "demo": "renders a scene into demo.mp4 and checks what is in it",
    "render": "renders a fragment shader into a video",
    "capture": "records the screen into a video",
    "serve": "shows a scene, the screen or a video to browsers and programs",
    "view": "receives frames, measures them, or pipes them to a program",
}


# If none of our words fits, bash completes the names of files.
_SCRIPT = """\
# To be evaluated by ~/.bashrc:  eval "$(aiozerocopy --completion bash)"
_aiozerocopy() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    case "$COMP_CWORD ${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
        1\\ *) words={commands} ;;
{choices}
    esac
    if [ -z "$words" ] && [ "${{word:0:1}}" = - ]; then
        case "${{COMP_WORDS[1]}}" in
{options}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _aiozerocopy aiozerocopy
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    name = " ".join(["aiozerocopy", *(word for word in words[:1] if word in COMMANDS)])
    return ending.ended(name, lambda: _run(name, words))


def _run(name: str, words: Sequence[str]) -> int:
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.completion:
        print(_completion(), end="")
        return 0
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        # Import only this module, so that doctor works where demo's extras are missing.
        module = importlib.import_module(f"aiozerocopy.commands.{arguments.command}")
        return int(module.main(arguments.arguments))
    except Exception as error:
        missing = ending.first_of(error)
        if not isinstance(missing, ModuleNotFoundError):
            raise
        if not extras.is_foreign(missing):  # a bug, so show all of it
            raise
        sentence = extras.sentence(name, missing, arguments.command)
        print(sentence, file=sys.stderr)
        return ending.FAILED


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy",
        description="Send memory to pipes, sockets and FFmpeg without a copy in user "
        "space.",
        epilog="\n".join(f"  {name:<8}{text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('aiozerocopy')}"
    )
    parser.add_argument(
        "--completion",
        choices=["bash"],
        help='print a script for the shell: eval "$(... --completion bash)"',
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=COMMANDS,
        metavar="COMMAND",
        help=", ".join(COMMANDS),
    )
    parser.add_argument(
        "arguments",
        nargs=REMAINDER,
        metavar="...",
        help="the command's arguments: see aiozerocopy COMMAND --help",
    )
    return parser


def _completion() -> str:
    """Return a script for bash, with the commands, their options, and choices."""
    choices, options = [], []
    for command in COMMANDS:
        names: list[str] = []
        module = importlib.import_module(f"aiozerocopy.commands.{command}")
        for action in module._parser()._actions:
            names += action.option_strings
            if action.choices:
                words = shlex.quote(" ".join(action.choices))
                choices += [
                    f"        *\\ {command}\\ {name}) words={words} ;;"
                    for name in action.option_strings
                ]
        every = shlex.quote(" ".join(names))
        options.append(f"            {command}) words={every} ;;")
    return _SCRIPT.format(
        commands=shlex.quote(" ".join(COMMANDS)),
        choices="\n".join(choices),
        options="\n".join(options),
    )
