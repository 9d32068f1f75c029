"""Branches on a tensor's value that do nothing but set variables, as a choice between what both branches set.

    if not torch.isfinite(h).all():          h = torch.where(asked, torch.clamp(h, -most, most), h)
        h = torch.clamp(h, -most, most)
    y = h.exp() if (h > 1).any() else h      y = torch.where(asked, h.exp(), h)

A module is captured as it is; where that fails at such an `if`, its function runs with another code and is captured
again. That code does the same for values that are known. What a branch without `else` changes in place, and a loop
skips by `continue`, is put back where the condition does not hold; a loop over the places of a mask goes over all,
those that hold alone having an effect. What else a branch may do (`return`, calls that may change something) stays
refused.

    for expert in hit.nonzero():             for expert, holds in every place of hit:
        out.index_add_(0, token, ...)            kept = out.clone(); out.index_add_(0, token, ...)
                                                 out.copy_(torch.where(holds, out, kept))
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from autoshard.frontends.torch.branch_bodies import (
    can_be_chosen,
    changed_in_place,
    is_pure,
    loops_said_so,
    set_variables,
    with_helps,
)
from autoshard.frontends.torch.places import places_of
from autoshard.frontends.torch.value_checks import is_capturing

_HERE = f"__import__({__name__!r}, fromlist=('*',))"
_MOST = 32
"""Branches of one module that are said so, one after the other."""

_Key = tuple[str, str, int]


def with_branches(capture: Callable[[], Any]) -> Any:
    """What `capture` makes, with branches that it fails at said as choices.

    Raises:
        Exception: what `capture` raises, where it is no such branch.
    """
    lines: dict[_Key, set[int]] = {}
    with ExitStack() as stack:
        for _ in range(_MOST):
            try:
                return capture()
            except Exception as error:
                found = _failed_at(error, lines)
                if found is None:
                    raise
                frame, line = found
                code = frame.f_code
                asked = lines.setdefault(_key(code), set())
                changed = None if line in asked else _choosing(code, {*asked, line})
                if changed is None:
                    raise
                asked.add(line)
                stack.enter_context(_exchanged(code, changed, frame.f_globals))
        return capture()


def _key(code: CodeType) -> _Key:
    """By which a function is told also when its code was exchanged."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _failed_at(error: Exception, exchanged: Container[_Key]) -> tuple[FrameType, int] | None:
    """The frame and line of a module that asked for a value which nothing knows."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if not isinstance(error, GuardOnDataDependentSymNode):
        return None
    walked = reversed([*traceback.walk_tb(error.__traceback__)])
    own = [one for one in walked if _may_branch(one[0].f_code.co_filename)]
    if not own:
        return None
    (frame, line), *outer = own
    if frame.f_code.co_name == "<lambda>":  # of an exchanged code, in which part of an expression is one
        frame = next((one for one, _ in outer if _key(one.f_code) in exchanged), frame)
    return frame, line


def _may_branch(file: str) -> bool:
    """Whether a file is a module's code, or one of torch's modules, and not what captures them."""
    import torch

    folder = os.path.dirname(torch.__file__) + os.sep
    modules = tuple(folder + part + os.sep for part in ("nn", "distributions"))
    return not is_capturing(file) and (not file.startswith(folder) or file.startswith(modules))


def _choosing(code: CodeType, lines: set[int]) -> CodeType | None:
    """The function's code with choices in the place of the branches at these lines; None where one cannot be so."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    rewriting = _BranchRewriter(tree, lines)
    tree = ast.fix_missing_locations(rewriting.visit(tree))
    if rewriting.done != lines:
        return None
    return next(_codes(compile(tree, code.co_filename, "exec", dont_inherit=True), code), None)


def _codes(inside: CodeType, like: CodeType) -> Iterator[CodeType]:
    """The codes of a file's function that another code is of."""
    for one in inside.co_consts:
        if isinstance(one, CodeType):
            known = (one.co_qualname, one.co_firstlineno, one.co_freevars)
            if known == (like.co_qualname, like.co_firstlineno, like.co_freevars):
                yield one
            yield from _codes(one, like)


@contextmanager
def _exchanged(code: CodeType, other: CodeType, variables: dict[str, Any]) -> Iterator[None]:
    """Let all functions of a code have the other one."""
    functions = _functions(code, variables)
    for one in functions:
        one.__code__ = other
    try:
        yield
    finally:
        for one in functions:
            one.__code__ = code


def _functions(code: CodeType, variables: dict[str, Any]) -> list[FunctionType]:
    """The functions of a code: those that Python's collector knows, and what its file calls so."""
    found: Any = variables.get(code.co_qualname.partition(".")[0])
    for name in code.co_qualname.split(".")[1:]:
        found = vars(found).get(name) if isinstance(found, type) else None
    candidates = [*gc.get_referrers(code)]
    while found is not None:
        candidates.append(found)
        found = getattr(found, "__wrapped__", None)
    known = {id(one): one for one in candidates if isinstance(one, FunctionType) and one.__code__ is code}
    return list(known.values())


class _BranchRewriter(ast.NodeTransformer):
    """Writes branches at these lines as choices; `done` are the lines of those that can be."""

    def __init__(self, tree: ast.AST, lines: set[int]) -> None:
        loops_said_so(tree, lines, lambda values, line: _called("each", line, values))
        with_helps(tree)
        branches = [
            node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp) and node.test.lineno in lines
        ]
        self.done = {node.test.lineno for node in branches if can_be_chosen(node)}
        self.done -= {node.test.lineno for node in branches if not can_be_chosen(node)}

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        takes = node.test.lineno in self.done
        parts = [node.body, node.orelse]
        both = [_Checked().visit(self.visit(deepcopy(part))) for part in parts] if takes else []
        self.generic_visit(node)
        if not takes:
            return node
        return _called("either", node.lineno, _condition(node.test), *map(_later, (node.body, node.orelse, *both)))

    def visit_If(self, node: ast.If) -> Any:
        line = node.test.lineno
        takes = line in self.done
        places = sorted(changed_in_place(node)) if takes else []
        names = sorted(set_variables(node).difference(places)) if takes else []
        # What is done in any case, and has to change nothing, is looked at once more when it is known what is called.
        yes_too, no_too = (self.both_ways(part) if takes else [] for part in (node.body, node.orelse))
        self.generic_visit(node)
        if not takes:
            return node
        asked, before, yes, kept_in = (f"_{word}_at_{line}" for word in ("asked", "before", "yes", "kept"))
        kept = f"{_HERE}.held(locals(), {tuple(names)!r})"
        back = [f"{name} = {_HERE}.back({before}, {name!r}, {name})" for name in names]
        chosen = [f"{name} = {_HERE}.chosen({asked}, {yes}, {before}, locals(), {name!r})" for name in names]
        test: Any = _written(f"{asked} = None", line)[0]
        test.value = _condition(node.test)
        choice: Any = _written(f"if {_HERE}.unknown({asked}): pass\nelif {asked}: pass\nelse: pass", line)[0]
        known: Any = choice.orelse[0]
        known.body, known.orelse = node.body, node.orelse or known.orelse
        copies = f"{kept_in} = {_HERE}.copies(locals(), {tuple(places)!r})"
        restored = [f"{name} = {_HERE}.restored({asked}, {name}, {kept_in}, {name!r})" for name in places]
        taken = [*_written(f"{before} = {kept}\n{copies}", line), *yes_too]
        taken += _written("\n".join([*restored, f"{yes} = {kept}"]), line)
        choice.body = [*taken, *_written("\n".join(back), line), *no_too, *_written("\n".join(chosen), line)]
        return [test, choice]

    def both_ways(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """A copy of a branch that is done whatever the condition says."""
        block = self.generic_visit(ast.Module([deepcopy(one) for one in statements], []))
        return _Checked().visit(block).body


class _Checked(ast.NodeTransformer):
    """Asks of calls whether they are of a tensor, or of torch."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute):
            asking: Any = _written(f"{_HERE}.computing(0, {node.func.attr!r})", node.lineno)[0]
            asking.value.args[0] = node.func.value
            node.func.value = asking.value
        elif not (isinstance(node.func, ast.Name) and (is_pure(node) or node.func.id in ("__import__", "locals"))):
            node.func = _called("calling", node.lineno, node.func)
        return node


def _written(text: str, line: int) -> list[ast.stmt]:
    """Statements that stand in a line of the file."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
    return tree.body


def _condition(test: ast.expr) -> ast.expr:
    """A condition whose parts may be tensors, where those behind them only compute."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _called("negated", test.lineno, _condition(test.operand))
    if not isinstance(test, ast.BoolOp):
        return test
    first, *others = test.values
    rest = others[0] if len(others) == 1 else ast.copy_location(ast.BoolOp(test.op, others), others[0])
    if all(map(is_pure, ast.walk(rest))):
        parts = (_condition(first), *(_later(_condition(one)) for one in (rest, _Checked().visit(deepcopy(rest)))))
        return _called("all_of" if isinstance(test.op, ast.And) else "any_of", test.lineno, *parts)
    if isinstance(test.op, ast.And):
        return ast.IfExp(first, _condition(rest), ast.Constant(False))
    return ast.IfExp(first, ast.Constant(True), _condition(rest))


def _called(name: str, line: int, *args: ast.expr) -> ast.expr:
    """A call of a function of this module."""
    call: Any = _written(f"{_HERE}.{name}()", line)[0]
    call.value.args = [*args]
    return call.value


def _later(value: ast.expr) -> ast.expr:
    """A function without arguments that computes a value."""
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


# -- what the codes call


def unknown(asked: Any) -> bool:
    """Whether a condition is a value that nobody knows while a module is captured: a tensor, or a size."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    if isinstance(asked, torch.SymBool | torch.SymInt):
        return not asked.node.has_hint()
    return isinstance(asked, FakeTensor | FunctionalTensor)


def _tensor(asked: Any) -> Any:
    """A condition that is not known, as a tensor of bools."""
    import torch

    if isinstance(asked, torch.Tensor):
        return asked.bool()
    asked = asked != 0 if isinstance(asked, torch.SymInt) else asked
    return torch.scalar_tensor(torch.sym_ite(asked, 1, 0)).bool()


def computing(owner: Any, name: str) -> Any:
    """What a function of a branch belongs to, if it can only compute.

    Raises:
        TypeError: it may change what it belongs to.
    """
    import torch

    package = owner.__name__ if isinstance(owner, ModuleType) else ""
    # Of this module are the functions that a branch inside of the branch is made of.
    if isinstance(owner, torch.Tensor) or package == __name__ or package.partition(".")[0] in ("torch", "math"):
        return owner
    if isinstance(owner, torch.nn.Module) and _computes(getattr(owner, name, None)):
        return owner
    raise TypeError(
        f"a branch on a tensor's value calls {name!r} of {type(owner).__name__}, which may change it: choose by "
        "torch.where or torch.cond"
    )


def calling(function: Any) -> Any:
    """What a branch calls, if it can only compute.

    Raises:
        TypeError: it may change something.
    """
    if _computes(function):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    raise TypeError(
        f"a branch on a tensor's value calls {name!r}, which may change something: choose by torch.where or torch.cond"
    )


def _computes(function: Any) -> bool:
    """Whether it is a function of torch, or a module that changes no statistics of its own."""
    from torch.nn import Module
    from torch.nn.modules.batchnorm import _NormBase

    if not isinstance(function, Module):
        owner = getattr(
            getattr(function, "__self__", None), "__name__", ""
        )  # of torch's functions that are not Python's
        package = getattr(function, "__module__", None) or owner
        return package.partition(".")[0] in ("torch", "math")
    norms = [one for one in function.modules() if isinstance(one, _NormBase)]
    return not any(one.training and one.track_running_stats for one in norms)


def negated(asked: Any) -> Any:
    return _tensor(asked).logical_not() if unknown(asked) else not asked


def each(values: Any) -> Iterable[tuple[Any, Any]]:
    """What a loop goes over, and whether each holds: of places that a mask selects, those of the whole mask."""
    found = places_of(values)
    return ((one, True) for one in values) if found is None else found


def copies(variables: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What variables hold before it is changed in place."""
    import torch

    found = held(variables, names)
    return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in found.items()}


def restored(asked: Any, now: Any, kept: dict[str, Any], name: str) -> Any:
    """What was changed in place, put back where the condition does not hold; numbers as a choice."""
    import torch

    if name not in kept:
        return now
    if not isinstance(now, torch.Tensor) or not isinstance(kept[name], torch.Tensor):
        return _choice(asked, now, kept[name], repr(name))
    return now.copy_(torch.where(_tensor(asked).reshape(()), now, kept[name]))


def all_of(first: Any, rest: Callable, checked_rest: Callable) -> Any:
    """first and rest."""
    if not unknown(first):
        return first and rest()
    other = checked_rest()
    return _tensor(first).logical_and(_tensor(other)) if unknown(other) else other and first


def any_of(first: Any, rest: Callable, checked_rest: Callable) -> Any:
    """first or rest."""
    if not unknown(first):
        return first or rest()
    other = checked_rest()
    return _tensor(first).logical_or(_tensor(other)) if unknown(other) else other or first


def held(variables: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The variables of these names that there are."""
    return {name: variables[name] for name in names if name in variables}


def back(variables: dict[str, Any], name: str, now: Any) -> Any:
    """A variable as it was, where it was set."""
    return variables.get(name, now)


def chosen(asked: Any, yes: dict[str, Any], before: dict[str, Any], no: dict[str, Any], name: str) -> Any:
    """A variable as one branch or the other sets it; what only one of them has is a help inside of it."""
    one, other = yes.get(name), no.get(name)
    if (
        isinstance(one, _Lost)
        or isinstance(other, _Lost)
        or any(not isinstance(size, int) for value in (one, other) for size in getattr(value, "shape", ()))
    ):
        return _Lost(name)  # of selected rows, most likely a help that an earlier turn of a loop has left
    if name not in before and (name not in yes or one is other):
        return other
    return _choice(asked, one, other, repr(name))


class _Lost:
    """A variable that a branch sets to so many rows as depend on the data: it is not to be used behind it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, asked: str) -> Any:
        raise TypeError(
            f"a branch on a tensor's value sets {self._name!r} to rows whose number depends on the data, and "
            f"{asked!r} of it is asked behind the branch; use what is made of all rows there"
        )


def either(asked: Any, yes: Callable, no: Callable, checked_yes: Callable, checked_no: Callable) -> Any:
    """What a conditional expression gives."""
    if unknown(asked):
        return _choice(asked, checked_yes(), checked_no(), "its value")
    return yes() if asked else no()


def _choice(asked: Any, one: Any, other: Any, what: str) -> Any:
    import torch

    if one is other or not isinstance(one, torch.Tensor) and type(one) is type(other) and one == other:
        return other
    tensors = [value for value in (one, other) if isinstance(value, torch.Tensor)]
    if tensors and (_alike(one, other) or all(map(partial(_fits, tensors[0]), (one, other)))):
        return torch.where(_tensor(asked).reshape(()), one, other)
    raise TypeError(
        f"a branch on a tensor's value makes {what} {_kind(one)}, where it is {_kind(other)} else: it has to be a "
        "tensor of one shape and type in both"
    )


def _alike(one: Any, other: Any) -> bool:
    return getattr(one, "shape", 0) == getattr(other, "shape", 1) and one.dtype == other.dtype


def _fits(tensor: Any, value: Any) -> bool:
    """Whether a value is a number where the other one is a tensor of one number, which it may as well be."""
    if value is tensor:
        return not tensor.dim()
    kind = float if tensor.is_floating_point() else int
    return isinstance(value, int | kind) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} {tuple(shape)}"
