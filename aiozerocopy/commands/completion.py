"""``aiozerocopy --completion bash``: a script for the shell, from the parsers."""

from __future__ import annotations

import importlib
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Where no word of ours fits, bash completes the names of files.
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


def script(commands: Iterable[str]) -> str:
    """What bash completes: the commands, their options, and the choices of those."""
    choices, options = [], []
    for command in commands:
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
        commands=shlex.quote(" ".join(commands)),
        choices="\n".join(choices),
        options="\n".join(options),
    )
