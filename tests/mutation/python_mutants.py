"""Small faults in a Python file, one at a time: what a typing error or a slip makes.

Only what stands in functions is changed, and no annotation.  A fault that is the same
program as the original or as another fault is left out.
"""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING

from trying import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of all that a sign can become, the one that says the least or the opposite.
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.RShift: (">>", "<<"),
    ast.LShift: ("<<", ">>"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.USub: ("-", "+"),
    ast.Not: ("not", ""),
}
NO_SUCH_ERROR = "NoSuchError"
FORGOTTEN = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Delete),
    *(ast.Break, ast.Continue),
)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All of them, in the order of the file."""
    lines = source.split("\n")
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    found = []
    for function in _functions(ast.parse(source)):
        begin, end = starts[function.lineno - 1], starts[function.end_lineno or 0]
        whole = source[begin:end]
        seen = {_meaning(whole)}
        for at, to, new in _Faults(source, starts).of(function):
            meaning = _meaning(source[begin:at] + new + source[to:end])
            if meaning is None or meaning in seen:
                continue
            seen.add(meaning)
            line = source.count("\n", 0, at)
            code = lines[line].strip()
            found.append(Mutant(file, line + 1, code, source[at:to], new, at))
    return sorted(found, key=lambda it: (it.at, it.old, it.new))


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those that stand in no other function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


class _Faults:
    """What can be wrong in a source, as (from, to, what stands there instead)."""

    def __init__(self, source: str, starts: list[int]) -> None:
        self.source, self.starts = source, starts

    def of(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[tuple[int, int, str]]:
        for statement in function.body:
            for node in _nodes(statement):
                yield from self._at(node)

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """(The parser counts bytes.)"""

        def offset(line: int | None, column: int | None) -> int:
            assert line is not None
            start, end = self.starts[line - 1 : line + 1]
            return start + len(self.source[start:end].encode()[:column].decode())

        at = offset(node.lineno, node.col_offset)
        return at, offset(node.end_lineno, node.end_col_offset)

    def _with_parentheses(self, node: ast.expr) -> tuple[int, int]:
        at, end = self._place(node)
        while (
            (before := self.source[:at].rstrip()).endswith("(")
            and (after := self.source[end:].lstrip()).startswith(")")
        ):  # fmt: skip
            at, end = len(before) - 1, len(self.source) - len(after) + 1
        return at, end

    def _between(
        self, sign: ast.AST, left: ast.expr, right: ast.expr
    ) -> Iterator[tuple[int, int, str]]:
        """The sign that stands between two."""
        if type(sign) in SWAPS:
            old, new = SWAPS[type(sign)]
            at = self.source.index(old, self._place(left)[1], self._place(right)[0])
            yield at, at + len(old), new

    def _at(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.BinOp():
                yield from self._between(node.op, node.left, node.right)
            case ast.BoolOp():
                for left, right in itertools.pairwise(node.values):
                    yield from self._between(node.op, left, right)
            case ast.Compare():
                values = [node.left, *node.comparators]
                for sign, pair in zip(
                    node.ops, itertools.pairwise(values), strict=True
                ):
                    yield from self._between(sign, *pair)
            case ast.UnaryOp() if type(node.op) in SWAPS:
                old, new = SWAPS[type(node.op)]
                at, _ = self._place(node)
                yield at, at + len(old), new
            case ast.Constant(value=bool()):
                yield *self._place(node), str(not node.value)
            case ast.Constant(value=int() | float() as value):
                for step in (1, -1):
                    yield *self._place(node), str(value + step)
            case ast.ExceptHandler(type=ast.expr() as error):
                for it in error.elts if isinstance(error, ast.Tuple) else [error]:
                    yield *self._place(it), NO_SUCH_ERROR
            case ast.Break():
                yield *self._place(node), "continue"
            case ast.Continue():
                yield *self._place(node), "break"
            case ast.For():
                yield *self._place(node.iter), "[]"
            case ast.If() if self.source.startswith("elif", self._place(node)[0]):
                pass
            case ast.If() | ast.While() | ast.Assert() | ast.IfExp():
                at, end = self._with_parentheses(node.test)
                yield at, end, f"not {self.source[at:end]}"
            case ast.Return(value=ast.Constant(value=None | True | False)):
                pass
            case ast.Return(value=ast.expr() as it):
                yield *self._with_parentheses(it), "None"
            case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield(value=None)):
                yield *self._place(node), "pass"
            case ast.Return(value=None):
                yield *self._place(node), "pass"
        if isinstance(node, FORGOTTEN):
            yield *self._place(node), "pass"


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """This one and all in it, but for annotations and what stands behind them."""
    yield node
    if not isinstance(node, ast.AnnAssign | ast.arg):
        for child in ast.iter_child_nodes(node):
            yield from _nodes(child)


def _meaning(function: str) -> str | None:
    """What is the same for two that do the same; None: it is no Python."""
    source = f"if True:\n{function}" if function[0] == " " else function
    try:
        compile(source, "", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return ast.dump(_Plain().visit(ast.parse(source)))


class _Plain(ast.NodeTransformer):
    """Forgets annotations, and says simply what ``not`` makes of a comparison."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node if node.value else ast.Pass()

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        inner = node.operand
        if not isinstance(node.op, ast.Not):
            return node
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            inner.ops = [OPPOSITES[type(inner.ops[0])]()]
            return inner
        return node


OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
}
OPPOSITES.update({new: old for old, new in list(OPPOSITES.items())})
