"""Small faults in a Python file, one at a time, by the operators of cosmic-ray.

Only what stands in functions is changed, and no annotation.  A fault that is the same
program as the original or as another fault is left out.
"""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

import parso
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from mutants import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of all that an operator can become, the one that says the least or the opposite.
SWAPPED = {
    "Binary": [
        *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_FloorDiv"),
        *("RShift_LShift", "LShift_RShift", "BitOr_BitAnd", "BitAnd_BitOr"),
    ],
    "Comparison": [
        *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
        *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt"),
    ],
    "Unary": ["USub_UAdd", "Delete_Not"],
}
PLAIN = [
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("ExceptionReplacer", "NumberReplacer", "ZeroIterationForLoop"),
    "AddNot",  # (after those that say the same in fewer words)
]
DROPPED = {"expr_stmt", "atom_expr", "power", "raise_stmt", "del_stmt", "keyword"}
NO_TYPES = {"annassign", "tfpdef"}


class DropStatement(Operator):  # type: ignore[misc]
    """A statement is forgotten."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt":
            statement = node.children[0]
            code = statement.get_code(include_prefix=False)
            bare = statement.type == "return_stmt" and len(statement.children) == 1
            if code != "pass" and (bare or statement.type in DROPPED):
                yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.children[0] = parso.parse(node.children[0].get_first_leaf().prefix + PASS)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class ReturnNothing(Operator):  # type: ignore[misc]
    """A function forgets what it has found out."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "return_stmt" and len(node.children) > 1:
            value = node.children[1]
            if value.get_code(include_prefix=False) not in ("None", "True", "False"):
                yield value.start_pos, value.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.children[1] = parso.parse(" None")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class SwapIn(Operator):  # type: ignore[misc]
    """``in`` is ``not in``, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "comparison":
            for sign in node.children[1::2]:
                if sign.get_code(include_prefix=False) in ("in", "not in"):
                    yield sign.start_pos, sign.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        sign = node.children[2 * index + 1].get_code(include_prefix=False)
        node.children[2 * index + 1] = parso.parse(" in" if " " in sign else " not in")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


PASS = "pass"


def _operators() -> list[Any]:
    names = [f"Replace{kind}Operator_{it}" for kind in SWAPPED for it in SWAPPED[kind]]
    theirs = [get_operator(f"core/{name}")() for name in (*names, *PLAIN)]
    return [SwapIn(), *theirs, DropStatement(), ReturnNothing()]


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All of them, in the order of the file."""
    lines = source.split("\n")
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]

    def offset(position: tuple[int, int]) -> int:
        return starts[position[0] - 1] + position[1]

    found = []
    for function in _functions(parso.parse(source)):
        begin = offset((function.start_pos[0], 0))
        whole = source[begin : offset(function.end_pos)]
        seen = {_meaning(whole)}
        for node, operator, i, (first, last) in _places(function):
            new = _mutated(operator, node, i)
            if new is None:
                continue
            at = offset(node.get_start_pos_of_prefix())
            rest = source[at + len(node.get_code()) : begin + len(whole)]
            mutant = source[begin:at] + new + rest
            meaning = _meaning(mutant)
            if meaning is None or meaning in seen:
                continue
            seen.add(meaning)
            start, end = offset(first), offset(last)
            kept = begin + len(whole) - end  # after the place
            new = mutant[start - begin : len(mutant) - kept]
            code = lines[first[0] - 1].strip()
            old = source[start:end]
            found.append(Mutant(file, first[0], code, old, new, start))
    return sorted(found, key=lambda it: (it.at, it.old, it.new))


def _functions(node: Any) -> Iterator[Any]:
    """Those that stand in no other function."""
    for child in getattr(node, "children", ()):
        if child.type == "funcdef":
            yield child
        else:
            yield from _functions(child)


def _places(function: Any) -> Iterator[tuple[Any, Any, int, Any]]:
    """Each node of its body that an operator can change, and from where to where."""
    operators = _operators()
    for node in _nodes(function.children[-1]):
        for operator in operators:
            for i, place in enumerate(operator.mutation_positions(node)):
                yield node, operator, i, place


def _nodes(node: Any) -> Iterator[Any]:
    if node.type not in NO_TYPES:
        yield node
        for child in getattr(node, "children", ()):
            yield from _nodes(child)


def _mutated(operator: Any, node: Any, index: int) -> str | None:
    """The node's code with a fault; the node is as before."""
    children = list(getattr(node, "children", ()))
    leaves = list(_leaves(node)) if node.type != "suite" else []
    values = [leaf.value for leaf in leaves]
    try:
        return str(operator.mutate(node, index).get_code())
    except AttributeError:  # ExceptionReplacer knows no names with dots
        return None
    finally:
        if children:
            node.children = children
        for leaf, value in zip(leaves, values, strict=True):
            leaf.value = value


def _leaves(node: Any) -> Iterator[Any]:
    if hasattr(node, "value"):
        yield node
    for child in getattr(node, "children", ()):
        if child.type != "suite":
            yield from _leaves(child)


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
