"""What statements of a branch may do to be done in any case, read from the code; see `branches`.

They compute, set variables, and change tensors of variables in place (`out[mask] += ...`, `out.index_add_(...)`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

_PURE = frozenset(("torch", "F", "nn", "math"))
"""Names of packages whose functions only compute."""
_BUILTINS = frozenset(("abs", "float", "int", "len", "max", "min", "range", "tuple"))
_NEW = (ast.BinOp, ast.UnaryOp, ast.Compare)
"""Expressions whose results share memory with nothing."""


def can_be_chosen(node: ast.If | ast.IfExp) -> bool:
    """Whether both ways compute, and change nothing but variables, or one of two tensors in place."""
    if isinstance(node, ast.IfExp):
        return all(map(is_pure, (*ast.walk(node.body), *ast.walk(node.orelse))))
    statements = [*node.body, *node.orelse]
    if not all(map(_only_sets, statements)):
        return False
    places = {name for one in statements for name in _places(one)}
    if not places:
        return True
    helps = _helps(node)
    own = {name for name in places if name in helps}
    if not all(_is_new(one, name, helps) for one in statements for name in own):
        return False
    return not (places - own).intersection(_assigned(statements)) and not (node.orelse and places - own)


def changed_in_place(node: ast.If) -> set[str]:
    """The variables whose tensors a branch changes in place, but those that are helps inside of it."""
    return {name for one in node.body for name in _places(one)} - _helps(node)


def set_variables(node: ast.If) -> set[str]:
    """The variables that a branch sets, but those that are helps inside of it."""
    return _assigned([*node.body, *node.orelse]) - _helps(node)


def with_helps(tree: ast.AST) -> None:
    """Note at each branch which variables nothing outside of it reads."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        everywhere, in_loops = _reads(function), _reads_in_own_loops(function)
        for node in ast.walk(function):
            if isinstance(node, ast.If):
                inside, names = _reads(node), _assigned([*node.body, *node.orelse])
                alone = {name for name in names if everywhere[name] == inside[name]}
                turns = getattr(node, "turns", set())  # a loop sets them before each turn
                own = {name for name in names & turns if everywhere[name] == in_loops[name]}
                node.helps = own | {  # type: ignore[attr-defined]
                    name for name in alone if "read" not in (_first(node.body, name), _first(node.orelse, name))
                }


def _helps(node: ast.If) -> set[str]:
    return getattr(node, "helps", set())


def _reads(node: ast.AST) -> Counter[str]:
    return Counter(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def _reads_in_own_loops(function: ast.FunctionDef) -> Counter[str]:
    """The reads of variables in loops, and in comprehensions, that go over these variables."""
    found: Counter[str] = Counter()

    def visit(node: ast.AST, over: frozenset[str]) -> None:
        parts = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        over |= {one.id for part in parts for one in ast.walk(part.target) if isinstance(one, ast.Name)}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in over:
            found[node.id] += 1
        for child in ast.iter_child_nodes(node):
            visit(child, over)

    visit(function, frozenset())
    return found


def _assigned(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that are given a value, not changed in place."""
    return {
        one.id
        for statement in statements
        for part in ast.walk(statement)
        if isinstance(part, ast.Assign)
        for target in part.targets
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def _first(statements: Sequence[ast.stmt], name: str) -> str:
    """Whether a variable may be "read" first, or is "set" first; "" for neither."""
    for one in statements:
        if isinstance(one, ast.If):
            if _reads(one.test)[name]:
                return "read"
            ways = {_first(one.body, name), _first(one.orelse, name)}
            if "read" in ways or ways == {"set"}:
                return "read" if "read" in ways else "set"
        elif _reads(one)[name] or isinstance(one, ast.AugAssign) and _base(one.target) == name:
            return "read"
        elif name in _assigned([one]):
            return "set"
    return ""


def _is_new(statement: ast.stmt, name: str, helps: set[str]) -> bool:
    """Whether what a statement assigns to a variable, if it does, shares memory with nothing outside of the branch."""
    found = [one.value for one in ast.walk(statement) if isinstance(one, ast.Assign) and name in _assigned([one])]
    return all(isinstance(one, _NEW) or isinstance(one, ast.Call) and _of_helps(one, helps) for one in found)


def _of_helps(call: ast.Call, helps: set[str]) -> bool:
    """Whether a module is called with helps alone."""
    given = [one for part in (*call.args, *call.keywords) for one in ast.walk(part) if isinstance(one, ast.Name)]
    return _of_a_module(call) and all(one.id in helps for one in given)


def _places(statement: ast.stmt) -> Iterator[str]:
    """The variables whose tensors a statement changes in place."""
    for one in ast.walk(statement):
        if isinstance(one, ast.AugAssign):
            yield _base(one.target)
        elif isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            yield _base(one)
        elif isinstance(one, ast.Expr) and (owner := _changed(one)) is not None:
            yield owner


def _base(target: ast.expr) -> str:
    """The variable of `x` or `x[...]`; "" of others."""
    target = target.value if isinstance(target, ast.Subscript) else target
    return target.id if isinstance(target, ast.Name) else ""


def _changed(statement: ast.Expr) -> str | None:
    """x of the statement `x.index_add_(...)`."""
    call = statement.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    name = call.func.attr
    in_place = name.endswith("_") and not name.endswith("__") and name in _methods()
    return _base(call.func.value) or None if in_place and isinstance(call.func.value, ast.Name) else None


def _only_sets(statement: ast.stmt) -> bool:
    """Whether a statement computes and sets variables, or changes a variable's tensor, and nothing else."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.If):
        return all(map(is_pure, ast.walk(statement.test))) and all(
            map(_only_sets, (*statement.body, *statement.orelse))
        )
    if isinstance(statement, ast.Expr):
        call: Any = statement.value
        return _changed(statement) is not None and all(
            map(_computes, (*call.args, *(one.value for one in call.keywords)))
        )
    if isinstance(statement, ast.AugAssign):
        return bool(_base(statement.target)) and _computes(statement.target) and _computes(statement.value)
    if not isinstance(statement, ast.Assign):
        return False
    targets = [
        one for target in statement.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return all(bool(_base(one)) and _computes(one) for one in targets) and _computes(statement.value)


def _computes(value: ast.expr) -> bool:
    """Whether an expression computes, as far as the code says; modules that it calls are looked at when it runs."""
    return all(is_pure(one) or isinstance(one, ast.Call) and _of_a_module(one) for one in ast.walk(value))


def _of_a_module(call: ast.Call) -> bool:
    """Whether a call may be that of a module: `expert(x)`, `self.experts[i](x)`, `self.up(x)`."""
    root = call.func
    if isinstance(root, ast.Attribute) and (root.attr in _methods() or root.attr.endswith("_")):
        return False
    while isinstance(root, ast.Attribute):
        root = root.value
    direct = call.func is root and isinstance(root, ast.Name) and root.id not in _BUILTINS
    return direct or isinstance(root, ast.Subscript) or isinstance(root, ast.Name) and root.id == "self"


def is_pure(node: ast.AST) -> bool:
    """Whether a node of an expression changes nothing, its parts left aside."""
    if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Lambda):
        return False
    if not isinstance(node, ast.Call):
        return True
    root, names = node.func, []
    while isinstance(root, ast.Attribute):
        names.append(root.attr)
        root = root.value
    if any(name.endswith("_") for name in names) or any(one.arg == "out" for one in node.keywords):
        return False
    if isinstance(root, ast.Name) and root.id in (_PURE if names else _BUILTINS):
        return True
    return bool(names) and names[0] in _methods()


@cache
def _methods() -> frozenset[str]:
    """What tensors can be asked for; others' methods may change what they belong to."""
    import torch

    return frozenset(dir(torch.Tensor))


# -- loops


def loops_said_so(tree: ast.AST, lines: set[int], each: Callable[[ast.expr, int], ast.expr]) -> None:
    """Write `if asked: continue` at these lines as a branch of what follows, and loops over places at these lines as
    loops over all places, of which those that hold do something.

    Args:
        each: what goes over values and whether they hold, in a line.
    """
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For | ast.While):
            continue
        line = loop.iter.lineno if isinstance(loop, ast.For) else -1
        over_places = line in lines and not loop.orelse
        loop.body = _without_continue(loop.body, None if over_places else lines)
        if over_places and isinstance(loop, ast.For):
            holds = f"_holds_at_{line}"
            target = ast.Tuple([loop.target, ast.Name(holds, ast.Store())], ast.Store())
            loop.target, loop.iter = ast.copy_location(target, loop.target), each(loop.iter, line)
            asked = ast.copy_location(ast.Name(holds, ast.Load()), loop.iter)
            turn: Any = ast.copy_location(ast.If(asked, loop.body, []), loop.iter)
            turn.turns = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
            loop.body = [turn]


def _without_continue(body: list[ast.stmt], lines: set[int] | None) -> list[ast.stmt]:
    """Statements of a loop; None for the lines: at all of them."""
    for i, one in enumerate(body):
        skips = (
            isinstance(one, ast.If) and not one.orelse and len(one.body) == 1 and isinstance(one.body[0], ast.Continue)
        )
        if not skips or not isinstance(one, ast.If) or lines is not None and one.test.lineno not in lines:
            continue
        rest = _without_continue(body[i + 1 :], lines) or [ast.copy_location(ast.Pass(), one)]
        test = ast.copy_location(ast.UnaryOp(ast.Not(), one.test), one.test)
        return [*body[:i], ast.copy_location(ast.If(test, rest, []), one)]
    return body
