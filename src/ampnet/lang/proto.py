"""Proto: a future node of the graph, as recorded in a `Trace`. Passes change protos; `ampnet.lang.lower` builds nodes.

kind             has                              becomes
an input         pump                             an input of the graph
a row operation  operation                        a step of a Rows node
a module call    module, make                     the module's node, with a site for each call
a bare parameter parameter, build                 a Weight node
control, losses  build                            the node that it builds from the `Plan`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ampnet.lang.ints import Int
from ampnet.lang.line import Line
from ampnet.lang.scope import Axis, Scope
from ampnet.nodes.node import Node
from ampnet.nodes.program import Program

if TYPE_CHECKING:
    from ampnet.lang.value import Value


@dataclass(eq=False, slots=True)
class Pump:
    """The source of an input's messages."""

    position: int | None = None
    """The index of the argument of ``forward`` that holds them; None for a constant of the model."""
    column: str | None = None
    """A column of a space; None if the argument itself is a tensor."""
    at: str | None = None
    """The nodes that the column has entries for, if not all elements: "leaves" or "branches"."""
    source: Any = None
    """The `ampnet.lang.symbols.Symbol` whose column it is."""
    constant: Tensor | None = None
    """The same row for every instance."""
    starts: tuple[Axis, ...] = ()
    """Loops that it is pumped into, at their first round."""


@dataclass(eq=False, slots=True)
class Operation:
    """A row-wise step of a Rows node."""

    op: str
    operands: tuple[Any, ...]
    """Values (as positions among the proto's inputs: ``Arg``), numbers and tensors."""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arg:
    """The value at an input port."""

    port: int


@dataclass(eq=False, slots=True)
class Proto:
    """A future node of the graph."""

    name: str
    inputs: list[Value | None]
    ports: tuple[str, ...]
    """Names of the output ports."""
    line: Line
    build: Callable[[Plan], Node] | None = None
    """Builds the node; None for an input, a row operation or a module call."""
    into: tuple[str, ...] = ()
    """Names of the input ports."""
    outputs: list[Value] = field(default_factory=list)
    ints: tuple[Int | int, ...] = ()
    """The integers that its state functions read."""
    scalars: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    """Further scalars and arrays of the structure that they read."""
    operation: Operation | None = None
    program: Program | None = None
    """The operation as a program; several operations after fusion."""
    module: nn.Module | None = None
    make: Callable[[nn.Module, Any], Node] | None = None
    """Calls only: (module, key) -> the node."""
    alike: object = None
    """Calls only: equal for calls that can be sites of one node."""
    parameter: nn.Parameter | None = None
    """A bare parameter that is itself the value."""
    activation: str | None = None
    """Calls of a Linear only: the activation applied to its output in the same node."""
    pump: Pump | None = None
    is_loss: bool = False
    is_result: bool = False
    """Whether it reports what ``forward`` returns, in a graph that predicts."""
    puts_together: Axis | None = None
    """The axis whose elements become one; there must be at least one."""
    note: str = ""
    """A remark for `explain`."""

    @property
    def scope(self) -> Scope:
        """The scope of its output; for a loss, the scope where it is computed."""
        given = self.outputs[0] if self.outputs else self.inputs[0]
        assert given is not None
        return given.scope


class Plan:
    """The scalars in the states, which are known when nodes are built."""

    def __init__(self, scalars: Sequence[str]) -> None:
        self.scalars = tuple(scalars)

    def fields(self, scope: Scope) -> tuple[str, ...]:
        return scope.fields(self.scalars)
