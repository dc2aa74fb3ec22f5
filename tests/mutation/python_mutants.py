"""Small faults in a Python file, one at a time: typing errors and slips."""

import ast
import itertools
from collections.abc import Iterator

from trying import Mutant, mutants

# For each operator, the replacement that differs least or that means the opposite.
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    **{ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+")},
    **{ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//")},
    **{ast.RShift: (">>", "<<"), ast.LShift: ("<<", ">>")},
    **{ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "==")},
    **{ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<")},
    **{ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.And: ("and", "or"), ast.Or: ("or", "and")},
}
FORGOTTEN = ast.Assign | ast.AugAssign | ast.Raise | ast.Delete


def mutants_of(file: str, source: str) -> list[Mutant]:
    faults = _Faults(source)
    faults.visit(ast.parse(source))
    return mutants(file, source, faults.found)


class _Faults(ast.NodeVisitor):
    """Finds faults in functions: a place, its text, and the replacement."""

    def __init__(self, source: str) -> None:
        assert source.isascii()  # (the parser's columns count bytes)
        lines = source.split("\n")
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
        self._source, self._depth = source, 0
        self.found: set[tuple[int, str, str]] = set()

    def visit(self, node: ast.AST) -> None:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if self._depth:
            for at, end, new in self._at(node):
                self.found.add((at, self._source[at:end], new))
        if is_function or not isinstance(node, ast.arguments | ast.AnnAssign):
            self._depth += is_function
            self.generic_visit(node)
            self._depth -= is_function

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        return self._starts[node.lineno - 1] + node.col_offset, end

    def _sign(
        self, sign: ast.AST, left: ast.expr, right: ast.expr
    ) -> Iterator[tuple[int, int, str]]:
        if type(sign) in SWAPS:
            old, new = SWAPS[type(sign)]
            at = self._source.index(old, self._place(left)[1], self._place(right)[0])
            yield at, at + len(old), new

    def _at(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.BinOp():
                yield from self._sign(node.op, node.left, node.right)
            case ast.BoolOp():
                for left, right in itertools.pairwise(node.values):
                    yield from self._sign(node.op, left, right)
            case ast.Compare():
                values = [node.left, *node.comparators]
                for sign, pair in zip(node.ops, itertools.pairwise(values)):  # noqa: B905
                    yield from self._sign(sign, *pair)
            case ast.UnaryOp(op=ast.Not()):
                at, _ = self._place(node)
                yield at, at + len("not"), ""
            case ast.Constant(value=bool()):
                yield *self._place(node), str(not node.value)
            case ast.Constant(value=int() | float() as value):
                yield *self._place(node), str(value + 1)
            case ast.ExceptHandler(type=ast.expr() as error):
                for it in error.elts if isinstance(error, ast.Tuple) else [error]:
                    yield *self._place(it), "NoSuchError"
            case ast.Break():
                yield *self._place(node), "continue"
            case ast.Continue():
                yield *self._place(node), "break"
            case ast.For():
                yield *self._place(node.iter), "[]"
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not _is_negated_otherwise(test):
                    at, end = self._place(test)
                    yield at, end, f"not ({self._source[at:end]})"
            case ast.Return(value=None) | ast.Expr(value=ast.Call() | ast.Await()):
                yield *self._place(node), "pass"
            case ast.Return(value=ast.expr() as it) if not _is_little(it):
                yield *self._place(it), "None"
            case ast.AnnAssign(value=ast.expr()):
                yield *self._place(node), "pass"
            case ast.stmt() if isinstance(node, FORGOTTEN):
                yield *self._place(node), "pass"


def _is_little(it: ast.expr) -> bool:
    return isinstance(it, ast.Constant) and it.value in (None, True, False)


def _is_negated_otherwise(test: ast.expr) -> bool:
    """Whether a mutant of its operator already means the opposite."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return isinstance(
            test.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq | ast.Is | ast.IsNot
        )
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
