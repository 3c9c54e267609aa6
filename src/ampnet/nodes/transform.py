"""Payload transforms: nodes that turn rows into rows and leave the state alone.

    forward    y = f(x)              what the backward needs of x and y is kept under the message's key
    backward   dL/dx from dL/dy      with what was kept

`Transform` is the paper's NPT (no parameters). `Parameterised` is its PPT: it also adds up the gradients of its
parameters and updates itself, by its own `Updater`, when enough have come in. Which weights a backward sees is a choice
with a name: ``"current"`` (the paper) or ``"stash"``, the forward's own.

A model may call one module in several places. Its node then has as many **sites**: what comes in at a site leaves by
the same one, with a separate key and memory, while the weights, their sums and their updates are shared.

    in   ──┐          ┌──> out
    in2  ──┼── W, b ──┼──> out2          `Linear(module).with_sites(3)`
    in3  ──┘          └──> out3
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, PayloadError
from ampnet.key import Packer
from ampnet.message import Messages, row_counts
from ampnet.nodes.kept import Kept
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, Role, backward_to, forward_to
from ampnet.nodes.span import BatchSpan, Span
from ampnet.nodes.store import Part, Store
from ampnet.state import Ints
from ampnet.update.updater import Updater

Residuals = tuple[Tensor | None, ...]


class Arrived(NamedTuple):
    """Messages that have come in on all ports of a site."""

    site: int
    messages: Messages
    """As they came in on the port that completed them."""
    payloads: Sequence[Tensor | None]
    """The payload of each port."""
    offsets: Sequence[Ints | None]
    """Likewise."""

    def leaving(self, payload: Tensor | None) -> Messages:
        """The messages with other rows, as many as came in on the first port."""
        return Messages.trusted(payload, self.messages.states, self.offsets[0], self.messages.train)

    def counts(self) -> Ints:
        """``[ports, messages]``: the rows of each message."""
        return np.stack([row_counts(offsets, len(self.messages)) for offsets in self.offsets])


class Transform(Node):
    """A function of rows without parameters (NPT). Subclasses implement `apply` and `gradient`."""

    kind = "transform"

    @property
    def role(self) -> Role:  # type: ignore[override]
        return "rows" if type(self).forward is Transform.forward else "own"

    def __init__(self, key: Sequence[str] | None = None) -> None:
        self.key = Packer(key)
        self.cache = Store(self.key, "its cache")

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        """The output rows, and what `gradient` will need: tensors with as many rows, kept as they are."""
        raise NotImplementedError

    def gradient(self, g: Tensor, kept: Kept) -> Tensor | None:
        """Gradient by the input rows; None where the input is not differentiable."""
        raise NotImplementedError

    def reference(self, x: Tensor) -> Tensor:
        """The same function in plain differentiable torch: the definition, and the oracle of tests."""
        raise NotImplementedError

    def forward(self, port: int, messages: Messages) -> Outputs:
        y, residuals = self.apply(_payload(messages), messages)
        if messages.train:
            self.cache.put(self.key.pack(messages.states), residuals, offsets=messages.offsets)
        return [forward_to(0, messages.with_payload(y))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        messages, parts = self.cache.take(messages)
        if messages.payload is None:
            return [backward_to(0, messages)]
        return [backward_to(0, messages.with_payload(self.gradient(messages.payload, Kept(parts))))]

    def probe(self, messages: Messages) -> bool:
        self.apply(_payload(messages), messages)
        return True

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "cache", self.cache


class Parameterised(Node):
    """A function of rows with parameters (PPT) that updates itself.

    Subclasses describe themselves by `parts`, `shape_out`, `check`, `run`, `back` and `collect`. Parameters are those
    of ``module``, the same objects, so a trained node is a trained torch module. While updates are frozen, gradients
    still add up in ``updater.sums``.
    """

    kind = "parameterised"

    @property
    def role(self) -> Role:  # type: ignore[override]
        return "rows" if type(self).forward is Parameterised.forward else "own"

    saturates = True
    takes_pieces = False
    """Whether rows that come in pieces may be taken piece by piece, each as a part."""
    keeps_y = False
    """Whether `back` reads the output rows."""
    keeps_weights = False
    """Whether a forward in training keeps tensors of its weights, which must not be written to until the backward."""
    ports = 1
    """The number of input ports of each site."""
    input_is_data = False
    """Whether its input is pumped, so that the input's gradient is not needed; set by the worker."""

    def __init__(self, module: nn.Module, key: Sequence[str] | None = None) -> None:
        self.module = module
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self._kept: tuple[str, ...] = ()
        """Names of what `run` keeps, once it has run."""
        self.updater: Updater
        self.make_updater()
        self.keys: list[Packer] = []
        """One for each site, and so are `caches`."""
        self.caches: list[Store] = []
        self._set_sites([key])

    def make_updater(self) -> None:
        """Create a fresh updater."""
        self.updater = Updater(list(self.parameters.values()))

    @property
    def sites(self) -> int:
        """The number of sites of this node."""
        return len(self.caches)

    @property
    def key(self) -> Packer:
        """The key of the first site."""
        return self.keys[0]

    def with_sites(self, sites: int | Sequence[Sequence[str] | None]) -> Self:
        """So many sites, or one for each of these keys. To be called before the node is wired and used.

        With a number, all sites key on the fields that the node was made with.
        """
        if any(len(cache) for cache in self.caches):
            raise GraphError(["sites cannot change while messages are in flight"])
        keys = [self.key.fields] * sites if isinstance(sites, int) else list(sites)
        if not keys:
            raise ValueError("a node needs at least one site")
        self._set_sites(keys)
        return self

    def _set_sites(self, keys: Sequence[Sequence[str] | None]) -> None:
        ends = ["", *map(str, range(2, len(keys) + 1))]
        marks = [""] if self.ports == 1 else [f"_{i + 1}" for i in range(self.ports)]
        self.inputs = tuple(f"in{end}{mark}" for end in ends for mark in marks)
        self.outputs = tuple(f"out{end}" for end in ends)
        self.keys = [Packer(key) for key in keys]
        self.caches = [Store(key, f"its cache{end}") for key, end in zip(self.keys, ends, strict=True)]

    @property
    def parts(self) -> Sequence[Sequence[tuple[int, int]]] | None:
        """The columns of an input row that each part of a span consists of; None: all of the row is one part."""
        return None

    def shape_out(self, x: Tensor) -> Sequence[int]:
        """The shape of an output row, for input rows (or a part of them) like ``x``."""
        raise NotImplementedError

    def check(self, x: Tensor) -> None:
        """Raise `PayloadError` where input rows do not fit."""

    def may_hoist(self, part: int) -> bool:
        """Whether the product of a part with its weight can be made ahead of `run`, for many spans at once."""
        return False

    def hoist(self, span: Span, part: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Where `run` expects such a product (it then finds None for the part), and the weight and bias of it."""
        raise NotImplementedError

    def delta(self, span: Span, part: int) -> Tensor:
        """The gradient of such a product, after `back`."""
        return self.hoist(span, part)[0]

    def run(self, span: Span) -> None:
        """Write the output rows. See `ampnet.nodes.span`."""
        raise NotImplementedError

    def back(self, span: Span) -> None:
        """Add to the gradients of the input rows."""
        raise NotImplementedError

    def collect(self, span: Span) -> None:
        """Add the gradients of the parameters to ``span.sums``."""
        raise NotImplementedError

    def rows_of(self, messages: Messages) -> Tensor:
        """Returns the input of `apply`."""
        if messages.payload is None:
            raise PayloadError("got a forward message without a payload")
        return messages.payload

    def reference(self, x: Tensor) -> Tensor:
        """The same function in plain differentiable torch."""
        out: Tensor = self.module(x)
        return out

    def forward(self, port: int, messages: Messages) -> Outputs:
        x, kept = self.rows_of(messages), dict[str, Tensor]()
        y = self._compute(x, kept, self.updater.forward_weights() if messages.train else self.updater.weights)
        if messages.train:
            self._kept = tuple(kept)
            residuals = (x, y if self.keeps_y else None, *kept.values())
            keys, updater = self.keys[port].pack(messages.states), self.updater
            self.caches[port].put(keys, residuals, None, messages.offsets, updater.seen_version())
        return [forward_to(port, messages.with_payload(y))]

    def _compute(self, x: Tensor, kept: dict[str, Tensor], w: Sequence[Tensor]) -> Tensor:
        self.check(x)
        span = BatchSpan(self._apart(x), w, kept)
        like = w[0] if w else x
        span.y = like.new_empty(x.shape[0], *self.shape_out(x))
        self.run(span)
        return span.y

    def _apart(self, x: Tensor) -> list[Tensor]:
        if self.parts is None:
            return [x]
        return [x[..., part[0][0] : part[0][1]] if len(part) == 1 else _columns(x, part) for part in self.parts]

    def backward(self, port: int, messages: Messages) -> Outputs:
        updater = self.updater
        messages, parts = self.caches[port].take(messages)
        updater.note_lags([(p.record.tag, len(p)) for p in parts])
        if messages.payload is None:
            return [backward_to(port, messages)]
        updater.count_messages(len(messages))
        if updater.looks_back and any(p.record.tag != updater.seen_version() for p in parts):
            return self._by_version(port, messages, parts)
        g = self._gradient(messages.payload, Kept(parts), updater.weights)
        return [backward_to(port, messages.with_payload(g))]

    def _gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor]) -> Tensor | None:
        named = {name: kept[i].clone() for i, name in enumerate(self._kept, start=2)}
        span = BatchSpan(self._apart(kept[0]), w, named, not self.input_is_data)
        y = kept.maybe(1)
        span.g, span.sums = g.clone(memory_format=torch.contiguous_format), self.updater.adding
        span.y = span.g if y is None else y
        self.back(span)
        self.collect(span)
        dx = span.beside()
        return dx if dx is None or self.parts is None else self._together(dx)

    def _together(self, dx: Tensor) -> Tensor:
        """Columns of all parts, in the order in which the input has them."""
        assert self.parts is not None
        flat = [columns for part in self.parts for columns in part]
        if all(a[1] == b[0] for a, b in itertools.pairwise(flat)):
            return dx
        out, start = torch.empty_like(dx), 0
        for a, b in flat:
            out[..., a:b] = dx[..., start : start + b - a]
            start += b - a
        return out

    def _by_version(self, port: int, messages: Messages, parts: list[Part]) -> Outputs:
        """Backward with the weights of each message's own forward: a batch for every version."""
        out, start = [], 0
        for part in parts:
            some = messages.slice(start, start + len(part))
            start += len(part)
            assert some.payload is not None
            g = self._gradient(some.payload, Kept([part]), self.updater.weights_of(part.record.tag))
            out.append(backward_to(port, some.with_payload(g)))
        return out

    def live_versions(self) -> set[int]:
        """The versions of the weights under which messages were forwarded that are not back yet."""
        return set().union(*(cache.live_tags() for cache in self.caches))

    def after_backward(self) -> None:
        """Called by the worker when a batch's gradients are in: drop weights that no live message needs."""
        if self.updater.stashes:
            self.updater.forget_versions(self.live_versions())

    def probe(self, messages: Messages) -> bool:
        self._compute(self.rows_of(messages), {}, self.updater.weights)
        return True

    def forget(self) -> None:
        super().forget()
        self.updater.forget_versions(set())
        self.updater.reset()

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from ((f"cache{i + 1 if i else ''}", cache) for i, cache in enumerate(self.caches))

    def held(self) -> dict[str, int]:
        return {**super().held(), "stash": self.updater.stashed()}

    def leads_to(self, port: int) -> Sequence[int]:
        return (port // self.ports,)

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return arriving[port * self.ports]

    def arrive(self, port: int, messages: Messages) -> list[Arrived]:
        """Receive messages on a port; returns those that are complete on all ports."""
        return [Arrived(port, messages, [messages.payload], [messages.offsets])]

    def face(self, site: int) -> Parameterised:
        """The node that says how a site computes: itself, unless sites differ (`ampnet.nodes.tied`)."""
        return self

    def check_rows(self, x: Tensor, width: int, dtype: object) -> None:
        """Raise `PayloadError` where rows do not fit the parameters."""
        if x.shape[-1] != width or x.dim() < 2:
            raise PayloadError(f"expects rows of width {width}, got a payload of shape {tuple(x.shape)}")
        if x.dtype != dtype:
            raise PayloadError(f"has {dtype} parameters, got a payload of {x.dtype}")


def _columns(x: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    return torch.cat([x[..., a:b] for a, b in ranges], -1)


def _payload(messages: Messages) -> Tensor:
    if messages.payload is None:
        raise PayloadError("got a forward message without a payload")
    return messages.payload
