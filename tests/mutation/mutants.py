"""Small faults in a C file, one at a time: typing errors and wrong ideas.

Only the bodies of functions are changed.  Constants in enums are left alone: most of
them are sizes and times, for which another number would serve as well.  The deliberate
faults of csrc/sabotage.h are left alone, too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trying import Mutant, mutants

TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*.*?\*/|^[ ]*\#(?:\\\n|[^\n])*)
    | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\d\w*)
    | (?P<sign>->|\+\+|--|&&|\|\||<<=?|>>=?|[-+*/%&|^=!<>]=|\.\.\.|.)
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
SWAPS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "true": "false",
    "false": "true",
}
OPENS, CLOSES = "([{", ")]}"
# Words that do not begin a statement that can be dropped by itself.
NOT_DROPPED = {"if", "else", "while", "for", "do", "switch", "case", "default", "goto"}
ENDS_A_CONDITION = {"(", "[", "{", ",", ";", "?", ":", "=", "+=", "-=", "|=", "return"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)


def mutants_of(file: str, source: str) -> list[Mutant]:
    return mutants(file, source, _changes(source))


def _changes(source: str) -> Iterator[tuple[int, str, str]]:
    for body in _bodies(_tokens(source)):
        for i in range(len(body)):
            for start, end, new in _at(body, i):
                yield start, source[start:end], new.replace("%", source[start:end])


def _tokens(source: str) -> list[Token]:
    return [
        Token(str(match.lastgroup), match.group(), match.start())
        for match in TOKEN.finditer(source)
        if match.lastgroup != "space"
    ]


def _bodies(tokens: list[Token]) -> Iterator[list[Token]]:
    """Find the functions' bodies, from brace to brace."""
    i = 0
    while i < len(tokens):
        if tokens[i].text in OPENS:
            end = _closing(tokens, i)
            if tokens[i].text == "{" and tokens[i - 1].text == ")":
                yield tokens[i : end + 1]
            i = end
        i += 1


def _closing(tokens: Sequence[Token], i: int) -> int:
    depth = 0
    while True:
        depth += (tokens[i].text in OPENS) - (tokens[i].text in CLOSES)
        if not depth:
            return i
        i += 1


def _at(body: list[Token], i: int) -> Iterator[tuple[int, int, str]]:
    """Return the faults at this token, as (from, to, replacement)."""
    it, before = body[i], body[i - 1]
    if _is_sabotage(body, i):
        return
    if it.text in SWAPS and body[i - 1].text != "return":
        yield it.at, it.end, SWAPS[it.text]
    elif it.text in "+-" and (before.kind != "sign" or before.text in ")]"):
        yield it.at, it.end, "-" if it.text == "+" else "+"
    elif it.text == "!":
        yield it.at, it.end, ""
    elif it.kind == "number" and it.text.isdecimal():
        yield it.at, it.end, str(int(it.text) + 1)
    elif it.text == "?":
        yield _start_of_condition(body, i), body[i - 1].end, "!(%)"
    elif it.text in ("if", "while"):
        end = _closing(body, i + 1)
        new = "!(%)" if it.text == "if" else "0 && (%)"
        if it.text == "while" or not _is_negated_otherwise(body[i + 2 : end]):
            yield body[i + 2].at, body[end - 1].end, new
    elif it.text == "return" and body[i + 1].text not in (";", "0", "NULL"):
        new = "1" if body[i + 1].text == "false" else "0"
        yield body[i + 1].at, body[_end_of_statement(body, i) - 1].end, new
    if _begins_statement(body, i):
        yield it.at, body[_end_of_statement(body, i)].at, ""


def _is_negated_otherwise(condition: list[Token]) -> bool:
    """Whether a mutant of one of its operators already means the opposite."""
    signs = [token.text for token in condition if token.text in ("&&", "||", "?")]
    return not signs and any(token.text in ("!", "==", "!=") for token in condition)


def _is_sabotage(body: list[Token], i: int) -> bool:
    start = i
    while body[start - 1].text not in (";", "{", "}"):
        start -= 1
    return any(token.text == "SABOTAGED" for token in body[start : i + 4])


def _start_of_condition(body: list[Token], i: int) -> int:
    depth = 0
    while True:
        before = body[i - 1].text
        if not depth and before in ENDS_A_CONDITION:
            return body[i].at
        depth += (before in CLOSES) - (before in OPENS)
        i -= 1


def _end_of_statement(body: list[Token], i: int) -> int:
    while body[i].text != ";":
        i = _closing(body, i) + 1 if body[i].text in OPENS else i + 1
    return i


def _begins_statement(body: list[Token], i: int) -> bool:
    """Whether a statement begins here: an expression, or a word like break."""
    it, before = body[i], body[i - 1].text
    if it.kind != "word" and it.text not in ("*", "++", "--"):
        return False
    if it.text in NOT_DROPPED or (it.text == "return" and body[i + 1].text != ";"):
        return False
    if before == ")":
        return _is_header(body, i - 1)
    if before == ":":
        return body[i - 2].text == "default" or body[i - 3].text == "case"
    return before in ("{", "}", ";", "else", "do") and not _is_in_header(body, i)


def _is_header(body: list[Token], end: int) -> bool:
    """Whether this parenthesis closes the header of an if, a while or a for."""
    starts = (i for i in range(end) if body[i].text in OPENS)
    start = next(i for i in starts if _closing(body, i) == end)
    return body[start - 1].text in ("if", "while", "for")


def _is_in_header(body: list[Token], i: int) -> bool:
    """Whether this token stands in parentheses or brackets, as in a for's header."""
    before = [token.text for token in body[:i]]
    return sum((text in "([") - (text in ")]") for text in before) > 0
