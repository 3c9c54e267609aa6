"""Rows: a straight line of operations on rows, in one invocation, with closed forms for the backward.

    forward    joins the messages of one key from all ports and runs the program; keeps what the backward reads
    backward   runs the program's gradients in the opposite order; every port gets its own, under the same states

Where a model computes `tanh(a) * sigmoid(b) + c`, one node does all of it: one key, one memory, one turn of the worker,
instead of five. See `ampnet.nodes.program` for what a program may hold and what is kept for it.

All ports are of one scope: states that meet under one key are equal on all ports, so nothing is remembered about them.
An input without a gradient (integers, or one that the result does not depend on) is answered with an empty message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet.errors import GraphError, PayloadError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.join import Join, Joined
from ampnet.nodes.kept import Kept
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Output, Outputs, Piece, backward_to, forward_to
from ampnet.nodes.plan import Plan
from ampnet.nodes.program import Program
from ampnet.nodes.store import Store
from ampnet.state import States

_SHOWN = 4
"""Operations named in a drawing."""


class Rows(Node):
    """``Rows(program, ("a", "b"))``: a port for each input of the program. See the head of this file."""

    role = "rows"
    kind = "transform"

    def __init__(self, program: Program, ports: Sequence[str] = ("in",), key: Sequence[str] | None = None) -> None:
        if len(ports) != program.inputs:
            raise GraphError([f"a program of {program.inputs} input(s) needs as many ports, got {tuple(ports)}"])
        self.program, self.inputs = program, tuple(ports)
        self.key = Packer(key)
        self.cache = Store(self.key, "its cache")
        self.join = Join(self.inputs, self.key, keep_states=False) if len(ports) > 1 else None
        self.plan: Plan | None = None
        self._kinds: list[tuple[torch.Size, torch.dtype, torch.device]] = []

    def forward(self, port: int, messages: Messages) -> Outputs:
        if self.join is None:
            return [self._run((messages.payload,), messages)]
        return [self._run(joined.payloads, joined.last) for joined in self.join.arrive(port, messages)]

    def _run(self, payloads: Sequence[Tensor | None], messages: Messages) -> Output:
        plan = self.plan_for(payloads)
        y, values = plan.run(payloads)  # type: ignore[arg-type]
        if messages.train and plan.kept:
            kept = tuple([values[i] for i in plan.kept])
            self.cache.put(self.key.pack(messages.states), kept, None, messages.offsets)
        return forward_to(0, messages.with_payload(y))

    def states_of(self, joined: Joined) -> States:
        """The states under which rows that met leave."""
        return joined.last.states

    def plan_for(self, payloads: Sequence[Tensor | None]) -> Plan:
        """The plan; made at the first batch of such rows. They must stay so while messages are in flight."""
        try:
            kinds = [(x.shape[1:], x.dtype, x.device) for x in payloads]  # type: ignore[union-attr]
        except AttributeError:
            raise PayloadError("got a forward message without a payload") from None
        plan = self.plan
        if plan is not None and kinds == self._kinds:
            return plan
        if plan is not None and len(self.cache):  # what was kept is to be read by the plan that kept it
            raise PayloadError(f"got rows of {_words(kinds)} after rows of {_words(self._kinds)}")
        with torch.no_grad():
            self.plan = plan = Plan(self.program, [x for x in payloads if x is not None])
        self._kinds = kinds
        return plan

    def view(self, port: int) -> list[Piece] | None:
        return self.program.view()

    def backward(self, port: int, messages: Messages) -> Outputs:
        plan, kept = self.plan, None
        assert plan is not None
        if plan.kept:
            messages, parts = self.cache.take(messages)
            kept = Kept(parts)
        g = messages.payload
        if g is None:
            return [backward_to(i, messages) for i in range(len(self.inputs))]
        return [backward_to(i, messages.with_payload(dx)) for i, dx in enumerate(plan.gradients(g, kept))]

    def to(self, *args: Any, **kwargs: Any) -> None:
        """Move or cast its constants, as `torch.nn.Module.to` does. Not while a run is going on."""
        self.program.to(*args, **kwargs)
        self.plan, self._kinds = None, []

    def reference(self, *xs: Tensor) -> Tensor:
        """The same function in plain differentiable torch."""
        return Plan(self.program, xs).run(xs)[0]

    def probe(self, messages: Messages) -> bool:
        if self.join is not None:
            return False
        self.plan_for((messages.payload,)).run((messages.payload,))  # type: ignore[arg-type]
        return True

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "cache", self.cache
        if self.join is not None:
            yield from self.join.stores()

    def waits(self) -> list[str]:
        return [] if self.join is None else self.join.waits()

    def describe(self) -> str:
        names = [step.name() for step in self.program.steps]
        return "·".join(names[:_SHOWN] + ["…"] * (len(names) > _SHOWN)) if names else "rows"


def _words(kinds: Sequence[tuple[torch.Size, torch.dtype, torch.device]]) -> str:
    return " and ".join(f"{tuple(shape)} {dtype}" for shape, dtype, _ in kinds)
