"""Module: any `nn.Module`, taken whole, as a parameterised node without a hand-written backward.

    forward    y = module(x, ...)        in training its autograd tape is kept, while the weights stay as they are
    backward   autograd's gradients of x and of the parameters; recomputes y where there is no tape, or an old one

It may have several input ports, of any shapes and dtypes, and messages of several rows: a whole sequence. How many
messages are computed at once is its `ampnet.nodes.bodies.Body`; by default the module is given all rows as a batch.

A row (of a body for whole messages: a message) must come out the same alone and among others, and every time: messages
meet in any composition, and the forward may be repeated. So what draws random numbers, or normalises over a batch, is
refused: dropout that is not switched off, BatchNorm that is not in eval mode. Each submodule stays in the mode (train
or eval) in which the node was made, even if ``model.train()`` is called later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, PayloadError
from ampnet.message import Messages, offsets_of, row_counts
from ampnet.nodes.bodies import Body, Direct
from ampnet.nodes.join import Join
from ampnet.nodes.kept import Kept, gather, gather_counts
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.lengths import Lengths
from ampnet.nodes.node import Output, Outputs, Role, backward_to, forward_to
from ampnet.nodes.store import Part
from ampnet.nodes.together import forget
from ampnet.nodes.transform import Arrived, Parameterised
from ampnet.state import Ints


class Module(Parameterised):
    """``Module(nn.PReLU())``: of rows. ``body`` and ``ports``: see the head of this file."""

    role: Role = "rows"
    keeps_weights = True

    def __init__(
        self, module: nn.Module, key: Sequence[str] | None = None, *, body: Body | None = None, ports: int = 1
    ) -> None:
        fault = not_repeatable(module)
        if fault is not None:
            raise GraphError([fault])
        forget(module)
        self.body, self.ports = body if body is not None else Direct(), ports
        self.looks_at_states = self.body.grouped
        self._modes = [(inner, inner.training) for inner in module.modules()]
        self._checked = not isinstance(self.body, Direct) or ports > 1
        super().__init__(module, key)

    def _set_sites(self, keys: Sequence[Sequence[str] | None]) -> None:
        super()._set_sites(keys)
        names = [self.inputs[i * self.ports : (i + 1) * self.ports] for i in range(len(keys))]
        self._joins = [Join(n, k, keep_states=False, same_rows=False) for n, k in zip(names, self.keys, strict=True)]
        self._others = [Join(n, k, keep_states=False, same_rows=False) for n, k in zip(names, self.keys, strict=True)]
        """What came in on the ports behind the first, of messages that are forwarded and not yet back."""

    def compute(self, xs: Sequence[Tensor], w: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        """The output rows: one for each of the first port."""
        versions = [x._version for x in xs]
        with self._as_made():
            y = self._run(xs, w, lengths)
            if not self._checked and len(xs[0]) > 1:
                check_alone(y, xs[0], lambda rows: self._run([rows], w, lengths))
                self._checked = True
        if [x._version for x in xs] != versions:
            raise PayloadError("writes into its input, which other nodes share: use the version that is not in place")
        return y

    def _run(self, xs: Sequence[Tensor], w: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        y = self.body.rows(self.module, dict(zip(self.parameters, w, strict=True)), xs, lengths)
        return check_row_wise(y, xs[0])

    @contextmanager
    def _as_made(self) -> Iterator[None]:
        """Every submodule in the mode in which it was when the node was made."""
        changed = [(inner, mode) for inner, mode in self._modes if inner.training != mode]
        for inner, mode in changed:
            inner.training = mode
        try:
            yield
        finally:
            for inner, mode in changed:
                inner.training = not mode

    def taped(
        self, xs: Sequence[Tensor], w: Sequence[Tensor], lengths: Sequence[Lengths], wanted: Sequence[bool]
    ) -> Tape:
        """The output rows with a tape by which gradients can be had. ``wanted``: of each port. Nobody may write into
        ``xs`` before."""
        with torch.enable_grad():
            given = [x.detach().requires_grad_(want) for x, want in zip(xs, wanted, strict=True)]
            leaves = [
                t.detach().requires_grad_(p.requires_grad) for t, p in zip(w, self.parameters.values(), strict=True)
            ]
            return Tape(given, leaves, self.compute(given, leaves, lengths))

    # -- by messages

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [self._forward(arrived) for arrived in self.arrive(port, messages)]

    def arrive(self, port: int, messages: Messages) -> list[Arrived]:
        if self.ports == 1:
            return super().arrive(port, messages)
        site, number = divmod(port, self.ports)
        return [
            Arrived(site, joined.last, joined.payloads, [joined.offsets(i) for i in range(self.ports)])
            for joined in self._joins[site].arrive(number, messages)
        ]

    def _forward(self, arrived: Arrived) -> Output:
        site, messages, payloads, offsets = arrived
        xs = [self.rows_of(messages.with_payload(x)) for x in payloads]
        w = self.updater.forward_weights() if messages.train else self.updater.weights
        y = self.compute(xs, w, self._lengths(len(messages), offsets))
        if messages.train:
            keys = self.keys[site].pack(messages.states)
            self.caches[site].put(keys, (xs[0],), None, offsets[0], self.updater.seen_version())
            for i in range(1, self.ports):
                self._others[site].waiting[i].put(keys, (xs[i],), None, offsets[i])
        return forward_to(site, arrived.leaving(y))

    def _lengths(self, messages: int, offsets: Sequence[Ints | None]) -> list[Lengths]:
        return [Lengths(row_counts(o, messages)) for o in offsets] if self.body.grouped else []

    def backward(self, port: int, messages: Messages) -> Outputs:
        updater = self.updater
        messages, parts = self.caches[port].take(messages)
        updater.note_lags([(p.record.tag, len(p)) for p in parts])
        if messages.payload is not None:
            updater.count_messages(len(messages))
        if (
            messages.payload is None
            or not updater.looks_back
            or all(p.record.tag == updater.seen_version() for p in parts)
        ):
            return self._backward(port, messages, parts, updater.weights)
        out: list[Output] = []
        start = 0
        for part in parts:  # each with the weights of its own forward
            some = messages.slice(start, start + len(part))
            start += len(part)
            out += self._backward(port, some, [part], updater.weights_of(part.record.tag))
        return out

    def _backward(self, site: int, messages: Messages, parts: list[Part], w: Sequence[Tensor]) -> list[Output]:
        found = [parts, *(self._others[site].in_order(i, messages) for i in range(1, self.ports))]
        counts = [gather_counts(some) for some in found]
        offsets = [None if c is None else offsets_of(c) for c in counts]
        dxs: Sequence[Tensor | None] = [None] * self.ports
        if messages.payload is not None:
            xs = [Kept(parts)[0], *(x for some in found[1:] if (x := gather(some, 0)) is not None)]
            tape = self.taped(xs, w, self._lengths(len(messages), offsets), [x.is_floating_point() for x in xs])
            dxs, dw = tape.gradients(messages.payload)
            for total, piece in zip(self.updater.adding, dw, strict=True):
                if piece is not None:
                    total.add_(piece)
        return [
            backward_to(site * self.ports + i, Messages.trusted(dx, messages.states, offsets[i], messages.train))
            for i, dx in enumerate(dxs)
        ]

    def probe(self, messages: Messages) -> bool:
        if self.ports > 1 or self.body.grouped:
            return False
        self.compute([self.rows_of(messages)], self.updater.weights, [])
        return True

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from super().stores()
        for join, others in zip(self._joins, self._others, strict=True) if self.ports > 1 else ():
            yield from join.stores()
            yield from ((f"kept of '{p}'", s) for p, s in zip(others.ports, others.waiting, strict=True))

    def waits(self) -> list[str]:
        return [line for join in self._joins for line in join.waits()]

    def describe(self) -> str:
        return type(self.module).__name__


class Tape:
    """What autograd noted of one computation."""

    __slots__ = ("_leaves", "_xs", "y")

    def __init__(self, xs: Sequence[Tensor], leaves: Sequence[Tensor], y: Tensor) -> None:
        self._xs, self._leaves, self.y = xs, leaves, y

    def gradients(self, g: Tensor) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """The gradients of the inputs and of the weights; None if not wanted, or if nothing depends on it. Call
        once."""
        asked = [t for t in (*self._xs, *self._leaves) if t.requires_grad]
        found: list[Tensor | None] = [None] * len(asked)
        if asked and self.y.requires_grad:
            found = list(torch.autograd.grad(self.y, asked, g, allow_unused=True))
        left = iter(found)
        given = [next(left) if t.requires_grad else None for t in (*self._xs, *self._leaves)]
        return given[: len(self._xs)], given[len(self._xs) :]


def not_repeatable(module: nn.Module) -> str | None:
    """Returns why a module cannot be recomputed, from its type and mode alone; None if it can."""
    for name, inner in module.named_modules():
        kind, named = type(inner).__name__, f" ('{name}')" if name else ""
        mixes = isinstance(inner, nn.modules.batchnorm._BatchNorm) and (inner.training or inner.running_mean is None)
        if mixes:
            why = "in training mode" if inner.training else "without running statistics"
            return (
                f"{kind}{named} {why} normalises by the other rows of its batch, and messages of different instances "
                f"meet in any composition, so it would not compute the same twice. Remedy: .eval() before compiling, "
                f"which freezes its running statistics (weight and bias still train), or nn.GroupNorm or nn.LayerNorm "
                f"in its place"
            )
        p = inner.p if isinstance(inner, nn.modules.dropout._DropoutNd) else getattr(inner, "dropout", 0.0)
        if isinstance(p, float) and p > 0 and inner.training and isinstance(inner, _DROPS):
            return (
                f"{kind}{named} drops numbers at random (p={p:g}) inside of a module that is taken whole, and would "
                f"draw others when its forward is repeated. Remedy: dropout=0.0 there, or .eval() before compiling, "
                f"and an nn.Dropout submodule of the model before or behind it, which has a mask for each message"
            )
    return None


_DROPS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def check_row_wise(y: object, x: Tensor) -> Tensor:
    """The output, if it is a tensor with a row per input row."""
    if not isinstance(y, Tensor) or y.dim() == 0 or y.shape[0] != x.shape[0]:
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise PayloadError(f"must give one output row per input row: {x.shape[0]} rows in, {shape} out")
    return y


def check_alone(y: Tensor, x: Tensor, call: Callable[[Tensor], Tensor]) -> None:
    """The first and the last row must come out alone as they do among others."""
    tolerance = 1e-2 if y.dtype in (torch.bfloat16, torch.float16) else 1e-4
    for row in (slice(0, 1), slice(len(x) - 1, len(x))):
        if not torch.allclose(call(x[row]), y[row], rtol=tolerance, atol=tolerance, equal_nan=True):
            raise PayloadError(
                "is not row-wise: a row comes out differently alone and among others. Messages are batched in any "
                "composition, so a function that mixes rows, or draws random numbers, has no meaning here"
            )
