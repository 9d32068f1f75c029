"""Where Shardy fails: why, by which sign one knows it, and a small module that shows it.

The differential test takes no failure that is not one of these. Most are modules that a pass makes invalid, where we
give an error too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from autoshard.util.errors import AutoshardError
from tests.propagate.shardy import PASSES, ShardyFailed

SINGLE = PASSES[:4]
_MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'


@dataclass(frozen=True)
class Fault:
    """A way in which Shardy fails.

    Attributes:
        name: of the fault, for the test's output.
        reason: why it fails.
        says: a regular expression for what it says, or how its process ends.
        text: a small module that it fails on.
        which: the passes that fail so; the first one does on `text`.
        needs: regular expressions that all occur in a module that it can fail on.
        ours: what our error says; '' where we may give a module.
        edges: whether edges are added to `text` first.
        undefined: whether it reads memory that is no more, or not there: it may as well end well.
    """

    name: str
    reason: str
    says: str
    text: str = field(repr=False)
    which: tuple[str, ...] = SINGLE
    needs: tuple[str, ...] = ()
    ours: str = ""
    edges: bool = True
    undefined: bool = False

    def explains(self, failed: ShardyFailed, text: str, which: str, ours: str | AutoshardError) -> bool:
        """Whether Shardy's failure on a module, and what we make of the module, are of this kind."""
        if which not in self.which or not re.search(self.says, str(failed)):
            return False
        if self.ours and not (isinstance(ours, AutoshardError) and re.search(self.ours, str(ours))):
            return False
        return all(re.search(need, text, re.DOTALL) for need in self.needs)


def fault_of(failed: ShardyFailed, text: str, which: str, ours: str | AutoshardError) -> str:
    """The name of the fault.

    Raises:
        AssertionError: there is none for it.
    """
    found = next((fault.name for fault in FAULTS if fault.explains(failed, text, which, ours)), "")
    assert found, f"{which}: an unknown failure of Shardy: {failed}\nours: {ours}\n{text}"
    return found


def _manual(outside: str, inside: str = "[{?}, {?}]", shape: str = "4x6", body: str = "stablehlo.negate %a") -> str:
    of = f"tensor<{shape}xf32>"
    return f"""{_MESH}func.func @main(%x: {of}) -> ({of} {{sdy.sharding = #sdy.sharding<@mesh, {outside}>}}) {{
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {inside}>] out_shardings=[<@mesh, {inside}>]
          manual_axes={{"x"}} (%a: {of}) {{
        %1 = {body} : {of if "func" not in body else f"({of}) -> {of}"}
        sdy.return %1 : {of}
      }} : ({of}) -> {of}
      return %0 : {of}
    }}"""


_CALLED = """
    func.func private @f(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<4x6xf32>
      return %0 : tensor<4x6xf32>
    }"""
_TAKEN, _WRITE = "already bound by a parent sdy.manual_computation", "cannot write the module with these shardings"

FAULTS = [
    Fault(
        "priority_of_dead_code",
        "it keeps a pointer to the value whose priority it read, and the value is erased as dead code",
        "died",
        _MESH
        + """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}p1]>]>} : tensor<8xf32>
          return %x : tensor<8xf32>
        }""",
        which=("user-priority", "full"),
        needs=(r"\}p\d",),
        undefined=True,
    ),
    Fault(
        "mesh_in_place",
        "a single pass looks up the mesh by the name that it does not have; only the pipeline gives it one before",
        "died",
        """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>}) -> tensor<8xf32> {
          %0 = stablehlo.negate %x : tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        needs=(r"mesh<\[",),
        undefined=True,
    ),
    Fault(
        "two_groups",
        "it aborts where a value is in two sharding groups; only the pipeline makes these one. We say so in an error",
        "died",
        _MESH
        + """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          sdy.sharding_group %x group_id=0 : tensor<8xf32>
          sdy.sharding_group %x group_id=1 : tensor<8xf32>
          %0 = stablehlo.negate %x : tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        needs=("group_id=0", "group_id=1"),
        ours="a value can be in one only",
    ),
    Fault(
        "manual_axis_inside",
        "an axis of a value outside spreads into a body that has it for a manual one, behind a free axis: manual axes "
        "are looked for by bisection, as if they always came first",
        _TAKEN,
        _manual('[{}, {"y", "z", "x"}]').replace('"y"=2', '"y"=2, "z"=2'),
        needs=("sdy.manual_computation",),
        ours=f"{_WRITE}.*{_TAKEN}",
    ),
    Fault(
        "manual_axis_at_the_border",
        "an in- or out-sharding that lacks a manual axis gets it from outside, in some dim; only the pipeline asks "
        "before that it stays whole along it",
        "must match|not divisible by the manual axes",
        _manual('[{"y"}, {"x"}]'),
        needs=("sdy.manual_computation",),
        ours=f"{_WRITE}.*(must match|not divisible by the manual axes)",
    ),
    Fault(
        "manual_axis_asked_by_a_function",
        "a function that is called in a body asks for a manual axis of the body: no fault but the module's",
        _TAKEN,
        _manual("[{}, {}]", "[{}, {}]", body="func.call @f(%a)") + _CALLED,
        which=("full",),
        needs=("sdy.manual_computation.*call @|call @.*sdy.manual_computation",),
    ),
    Fault(
        "dead_body_in_a_function_called_twice",
        "the second call looks for the edges of a manual computation that was erased as dead code",
        "died",
        _MESH
        + """func.func private @f(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
          %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {?}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
              manual_axes={"x"} (%a: tensor<4x4xf32>) {
            %1 = stablehlo.negate %a : tensor<4x4xf32>
            sdy.return %1 : tensor<4x4xf32>
          } : (tensor<8x4xf32>) -> tensor<8x4xf32>
          return %x : tensor<8x4xf32>
        }
        func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
          %0 = func.call @f(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
          %1 = func.call @f(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
          return %1 : tensor<8x4xf32>
        }""",
        needs=("sdy.manual_computation", r"(call @\w+).*\1\b"),
        undefined=True,
    ),
    Fault(
        "maximal_mesh_of_another_result",
        "where one result of an operation has a sharding, those without get an open one on its mesh, also if that has "
        "one device, where shardings have no dims",
        "a maximal sharding can only have",
        """sdy.mesh @one = <[], device_ids=[1]>
        func.func @main(%x: tensor<4xf32>, %y: tensor<6xf32>) -> (tensor<4xf32>, tensor<6xf32>) {
          %0:2 = stablehlo.optimization_barrier %x, %y : tensor<4xf32>, tensor<6xf32>
          %1 = sdy.data_flow_edge %0#0 sharding=<@one, []> : tensor<4xf32>
          %2 = sdy.data_flow_edge %0#1 : tensor<6xf32>
          return %1, %2 : tensor<4xf32>, tensor<6xf32>
        }""",
        which=PASSES,
        needs=(r"device_ids=\[1\]",),
        ours=f"{_WRITE}.*a maximal sharding can only have",
        edges=False,
    ),
    Fault(
        "maximal_mesh_of_another_argument",
        "an argument of dynamic size gets an open sharding on the mesh of the first argument that has one, also if "
        "that mesh has one device; we take the first mesh that has more",
        "a maximal sharding can only have",
        """sdy.mesh @mesh = <["x"=2]>
        sdy.mesh @one = <[], device_ids=[1]>
        func.func private @f(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@one, []>}, %y: tensor<?x6xf32>,
                             %z: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
          return %x : tensor<4xf32>
        }
        func.func @main(%x: tensor<4xf32>, %y: tensor<?x6xf32>) -> tensor<4xf32> {
          %0 = func.call @f(%x, %y, %x) : (tensor<4xf32>, tensor<?x6xf32>, tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }""",
        which=("full",),
        needs=(r"device_ids=\[1\]", r"tensor<\?x"),
    ),
    Fault(
        "named_computation_in_the_pipeline",
        "edges are added to it with all others and once more when calls become named computations",
        "expected input of sdy.data_flow_edge to",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = sdy.named_computation<"f">(%x) (%a: tensor<8xf32>) {
            %1 = stablehlo.negate %a : tensor<8xf32>
            sdy.return %1 : tensor<8xf32>
          } : (tensor<8xf32>) -> tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        which=("full",),
        needs=("sdy.named_computation",),
    ),
    Fault(
        "edge_in_the_pipeline",
        "an edge that the module holds gets a second one",
        "expected input of sdy.data_flow_edge to",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.optimization_barrier %x : tensor<8xf32>
          %1 = sdy.data_flow_edge %0 : tensor<8xf32>
          return %1 : tensor<8xf32>
        }""",
        which=("full",),
        needs=("sdy.data_flow_edge",),
    ),
    Fault(
        "dynamic_result",
        "it takes tensors of dynamic size for arguments, but not for results; we spread around them",
        "only supports ranked tensors with a static shape",
        """func.func @main(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
          %0 = stablehlo.negate %x : tensor<?x8xf32>
          return %0 : tensor<?x8xf32>
        }""",
        which=PASSES,
        needs=(r"tensor<\?x",),
    ),
    Fault(
        "rule_of_a_dynamic_operand",
        "single passes spread through an operation with a dynamic operand by a rule with a factor of size -2^63, which "
        "its own verifier refuses; only the pipeline verifies it. We let such operations have no rule",
        "operand 0 - expected a ranked tensor with a static shape",
        """func.func @main(%x: tensor<8x?xf32>, %y: tensor<?x4xf32>) -> tensor<8x4xf32> {
          %0 = stablehlo.dot %x, %y : (tensor<8x?xf32>, tensor<?x4xf32>) -> tensor<8x4xf32>
          return %0 : tensor<8x4xf32>
        }""",
        which=("full",),
        needs=(r"tensor<[x\d]*\?",),
    ),
    Fault(
        "function_edge_in_the_pipeline",
        "calls are written out in place, and the edges between functions are left on what is no call any more",
        "sdy.func_data_flow_edge to be a result of call op",
        """func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
          return %x : tensor<8xf32>
        }
        func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
          %1 = sdy.func_data_flow_edge %0 : tensor<8xf32>
          return %1 : tensor<8xf32>
        }""",
        which=("full",),
        needs=("sdy.func_data_flow_edge",),
    ),
    Fault(
        "calls_that_come_round",
        "what a change touches it follows into and out of functions, by a recursion that never ends where a function "
        "that returns its argument is called on what it has returned",
        "died",
        _MESH
        + """func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
          return %x : tensor<8xf32>
        }
        func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
          %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
          %1 = func.call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>
          %2 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<8xf32>
          return %1, %2 : tensor<8xf32>, tensor<8xf32>
        }""",
        needs=(r"(call @\w+).*\1\b",),
        undefined=True,
    ),
    Fault(
        "where_a_call_without_results_runs",
        "it looks for the sharding of the first result, of which there is none",
        "died",
        """sdy.mesh @one = <[], device_ids=[1]>
        func.func private @f(%x: tensor<8xf32>) {
          return
        }
        func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          func.call @f(%x) {sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>} : (tensor<8xf32>) -> ()
          return %x : tensor<8xf32>
        }""",
        which=("full",),
        needs=(r"call @[^\n]*per_value[^\n]*-> \(\)",),
        undefined=True,
    ),
    Fault(
        "group_of_arguments_of_a_body",
        "what an argument of a body gets from outside, the other members of its group get with the manual axes, which "
        "mean nothing inside; we leave these out",
        f"duplicate axis ref|{_TAKEN}",
        _MESH
        + """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}]>}, %y: tensor<8xf32>)
            -> tensor<8xf32> {
          %0 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{"x", ?}]>, <@mesh, [{"x", ?}]>]
              out_shardings=[<@mesh, [{"x", ?}]>] manual_axes={"x"} (%a: tensor<4xf32>, %b: tensor<4xf32>) {
            sdy.sharding_group %a group_id=0 : tensor<4xf32>
            sdy.sharding_group %b group_id=0 : tensor<4xf32>
            %1 = stablehlo.custom_call @sdy_testonly(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
            sdy.return %1 : tensor<4xf32>
          } : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        which=PASSES,
        needs=("sdy.manual_computation", "sdy.sharding_group"),
    ),
    Fault(
        "group_of_a_result_of_a_body",
        "a result of a manual computation gets the sharding of another member of its group, without its manual axes",
        "must match|not divisible by the manual axes|duplicate axis ref",
        _MESH
        + """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
          %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{?}]>]
              manual_axes={"x"} (%a: tensor<4xf32>) {
            %1 = stablehlo.custom_call @sdy_testonly(%a) : (tensor<4xf32>) -> tensor<8xf32>
            sdy.return %1 : tensor<8xf32>
          } : (tensor<8xf32>) -> tensor<8xf32>
          sdy.sharding_group %x group_id=0 : tensor<8xf32>
          sdy.sharding_group %0 group_id=0 : tensor<8xf32>
          return %0 : tensor<8xf32>
        }""",
        which=PASSES,
        needs=("sdy.manual_computation", "sdy.sharding_group"),
        ours=_WRITE,
    ),
]
