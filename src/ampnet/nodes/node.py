"""Node: what every IR node is to the worker that hosts it.

A node has named input and output ports. It is handed a batch of messages that came in on one port, in one direction,
and answers with batches to send: forward out of an output port, backward out of an input port, or a report to the
controller.

    forward(port, messages)    messages came in on input port ``port``
    backward(port, messages)   gradients came back on output port ``port``

Invariant: for every forward message that a node emits with a state in training, it will receive exactly one backward
message with that state. In inference nothing is kept for a backward, because none will come.

No node knows a worker, a queue or a process; no node calls another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from ampnet.errors import GraphError
from ampnet.message import Messages
from ampnet.state import Column, Ints, States
from ampnet.structure import Shelf

if TYPE_CHECKING:
    from ampnet.nodes.keyed import Keyed


class Direction(IntEnum):
    """The direction of a batch."""

    FORWARD = 0
    BACKWARD = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a Loss to the controller about a batch of messages."""

    node: str
    """Name of the Loss node."""
    states: States
    """The messages reported on."""
    train: bool
    """Whether they are training messages."""
    loss: Tensor
    """The loss of each message; NaN where no label was given."""
    metrics: dict[str, Tensor]
    """Per message, by metric name: the sum over its rows."""
    rows: Ints
    """Rows of each message: what sums of `metrics` are divided by."""
    prediction: Tensor | None = None
    """The rows passed to the loss; inference only."""
    offsets: Ints | None = None
    """Row offsets of ``prediction``."""
    skipped: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Positions of messages whose loss was not finite and whose gradient was left out."""
    labelled: bool = True
    """False where no label was given, and so there is no loss."""


Role = Literal["route", "rows", "reduce", "loss", "result", "own"]
Piece = tuple[int, tuple[int, int] | None]
"""Which of the rows that come in (by port; of a message of several rows, by place), and which columns (None: all)."""

Output = tuple[Direction, int, Messages] | Report
"""(direction, port, messages): forward leaves by an output port, backward by an input port."""

Outputs = Sequence[Output]


def forward_to(port: int, messages: Messages) -> Output:
    return (Direction.FORWARD, port, messages)


def backward_to(port: int, messages: Messages) -> Output:
    return (Direction.BACKWARD, port, messages)


class StateFunction:
    """A user's function of states: ``f(s)``, or ``f(s, structure)`` where it looks into the instance's arrays."""

    __slots__ = ("function", "modulus", "name", "takes_structure")

    watch: ClassVar[NumberWatch | None] = None
    """Set while it is recorded whether functions read instance numbers."""

    def __init__(self, function: Callable[..., Any], extra: int = 0) -> None:
        """``extra`` arguments come between the states and the structure."""
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.modulus: int | None = getattr(function, "modulus", None)
        """The function depends on the number of an instance only modulo this; None: unknown."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a built-in without a signature
            self.takes_structure = False
            return
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = [p for p in positional if p.default is p.empty]
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if len(required) > 2 + extra or (len(positional) < 1 + extra and not takes_any):
            wanted = "(s)" if not extra else "(s, position)"
            raise GraphError([f"state function '{self.name}' must take {wanted}, and structure last if it needs it"])
        self.takes_structure = len(positional) > 1 + extra

    def __call__(self, states: States, *extra: Column, shelf: Shelf | None) -> Any:
        given = states if StateFunction.watch is None or self.modulus else Watched.over(states, StateFunction.watch)
        if self.takes_structure:
            result = self.function(given, *extra, (shelf or Shelf()).at(states))
        else:
            result = self.function(given, *extra)
        return result if given is states else _plain(result)

    def of(self, states: States, shelf: Shelf | None) -> Any:
        """The same for a function of states alone, with less overhead."""
        if StateFunction.watch is not None:
            return self(states, shelf=shelf)
        if self.takes_structure:
            return self.function(states, (shelf or Shelf()).at(states))
        return self.function(states)


class NumberWatch:
    """Records whether a function of states read the numbers of instances."""

    def __init__(self) -> None:
        self.looked = False


class Watched(States):
    """States that record reads of the instance number. States derived from them are plain."""

    __slots__ = ("_states", "_watch")

    @classmethod
    def over(cls, states: States, watch: NumberWatch) -> Watched:
        self = cls.trusted(states.fields, states.columns)
        assert isinstance(self, Watched)
        object.__setattr__(self, "_states", states)
        object.__setattr__(self, "_watch", watch)
        return self

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name in ("column", "fields", "__class__", "_states", "_watch"):
            return get(name)
        if name in ("columns", "row", "describe"):
            get("_watch").looked = True
        return getattr(get("_states"), name) if name != "instance" else get("column")(name)

    def column(self, name: str) -> Ints:
        if name == "instance":
            self._watch.looked = True
        return States.column(self._states, name)


def _plain(result: Any) -> Any:
    """Returns the result of a function, with plain states in it."""
    if isinstance(result, Watched):
        return result._states
    if isinstance(result, tuple):
        return tuple(_plain(one) for one in result)
    return result


class Node:
    """Base of all IR nodes. Subclasses set ``inputs`` and ``outputs`` and implement `forward` and `backward`."""

    role: Role = "own"
    """The operation of the node on rows, for the planner of waves (`ampnet.plan`):

        "route"     sends rows about by their states, and makes none
        "rows"      makes a row from one row of each input port (`Transform`, `Parameterised`, `Rows`, ...)
        "reduce"    makes a row from several of one message
        "loss"      judges rows
        "result"    reports rows
        "own"       none of these: only its `forward` and `backward` know, so it can be run by messages alone
    """
    looks_at_states: bool = False
    """Whether it reads the states of its messages while it computes."""
    by_turns: bool = False
    """Whether its routing depends on the messages sent before."""
    fans_out: bool = False
    """Whether a message may have no children here, and is answered with a gradient of zero then."""
    kind: str = "node"
    """One of "parameterised", "transform", "control", "aggregate", "loss": how the node is drawn."""
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    saturates: bool = False
    """Whether a batch beyond some number of rows gains nothing (matrix products do not run any faster)."""
    passing: tuple[bool, bool] = (False, False)
    """Forward, backward: whether there is so little to do that no batch need wait for company here, however small."""
    name: str = "?"
    """Set by the graph."""
    shelf: Shelf | None = None
    """The structures of live instances; set by the worker."""

    def forward(self, port: int, messages: Messages) -> Outputs:
        raise NotImplementedError

    def backward(self, port: int, messages: Messages) -> Outputs:
        raise NotImplementedError

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        """Every keyed cache of the node, by name."""
        return iter(())

    def held(self) -> dict[str, int]:
        """Returns the number of messages in each of the node's caches. All zero when nothing is in flight."""
        return {name: len(store) for name, store in self.stores()}

    def forget(self) -> None:
        """Drop every cache, when messages in flight are abandoned."""
        for _, store in self.stores():
            store.clear()

    def forget_instances(self, instances: Column) -> None:
        """Drop what still waits here for instances of which all results are in (inference)."""
        for _, store in self.stores():
            store.drop_instances(instances)

    def probe(self, messages: Messages) -> bool:
        """Try the forward on these messages without keeping anything; raise what it raises.

        False where this kind of node cannot be tried. It serves to single out the message behind an error.
        """
        return False

    def waits(self) -> list[str]:
        """Returns what waits here and for what, as text, for `StallError`."""
        return []

    def state_functions(self) -> dict[str, StateFunction]:
        """The user's functions of states, by role."""
        return {}

    def leads_to(self, port: int) -> Sequence[int]:
        """The output ports by which what comes in on an input port may leave."""
        return range(len(self.outputs))

    def view(self, port: int) -> list[Piece] | None:
        """The pieces, side by side, that the rows of an output port consist of, where they need not be made because
        they can be read in place; None: the rows are nowhere else."""
        return None

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        """The state fields on an output port, given those on the input ports; None where they cannot be told."""
        return next((f for f in arriving if f is not None), None)

    @property
    def needs_structure(self) -> bool:
        return any(f.takes_structure for f in self.state_functions().values())

    def describe(self) -> str:
        """A few words for drawings: the kind of node and what sets it apart."""
        return type(self).__name__
