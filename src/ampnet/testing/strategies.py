"""Random graphs for Hypothesis: programs drawn at random, each built twice, as an IR graph and as plain torch.

A *program* is a list of blocks applied to one value of an instance. A block is a name, or a name with inner programs:

    "linear" "tanh" "relu" "sigmoid" "norm"      row-wise
    "split"                                      Split into halves, swapped by a Concat
    ("branch", a, b)                             Bcast, programs a and b side by side, Concat, Linear back to width
    ("choice", a, b)                             Cond by the instance's kind, Phi
    ("loop", a)                                  program a `count` times: Phi, Isu, Cond
    ("each", a, b, how)                          Flatmap to `fan` children, a and b on every other one, Group, Reduce
    ("rows", a, b, how)                          the same through Ungroup: each child is a row of its own

State: (instance, kind, count, fan, step, child). Every instance has its own kind, count and fan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet.graph import Graph
from ampnet.instance import Instance, feed
from ampnet.nodes import (
    Bcast,
    Concat,
    Cond,
    Flatmap,
    Group,
    Isu,
    LayerNorm,
    Linear,
    Loss,
    Node,
    Phi,
    Reduce,
    Relu,
    Sigmoid,
    Split,
    Tanh,
    Ungroup,
)
from ampnet.state import Column, States

WIDTH = 4
FIELDS = ("kind", "count", "fan", "step", "child")

Block = str | tuple[Any, ...]
Eager = Callable[[Tensor, "Example"], Tensor]


@dataclass(frozen=True)
class Example:
    """One instance of a random model."""

    value: Tensor
    label: Tensor
    kind: int
    count: int
    fan: int


def _expand(s: States) -> tuple[Column, States]:
    owner = np.repeat(np.arange(len(s)), s.fan)
    first = np.cumsum(s.fan) - s.fan
    return owner, s.take(owner).replace(child=np.arange(len(owner)) - first[owner])


class RandomModel:
    """A program as an IR graph (``graph``) and as plain torch (`loss`), over the same parameters, in float64."""

    def __init__(self, program: list[Block], seed: int = 0) -> None:
        self.graph = Graph("random")
        self._counter = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.graph.add("loss", Loss("squared_error", key=("instance",)))
            # A Linear in front of everything: its gradient tells whether the value's own gradient came back right.
            node = self._linear()
            first = self._add("linear", node, None)
            self.graph.input("value", first, FIELDS)
            self.graph.input("label", "loss.label")
            last, rest = self._chain(program, first)
            self._eager: Eager = lambda x, e: rest(node.reference(x), e)
            self.graph.connect(last, "loss.prediction")

    def loss(self, example: Example) -> Tensor:
        """The loss of one example in plain torch."""
        y = self._eager(example.value, example)
        return ((y - example.label) ** 2).mean()

    def instance(self, example: Example) -> Instance:
        state = {"kind": example.kind, "count": example.count, "fan": example.fan, "step": 0, "child": 0}
        return Instance({"value": feed(example.value, **state), "label": feed(example.label)})

    def _name(self, what: str) -> str:
        self._counter += 1
        return f"{what}{self._counter}"

    def _add(self, what: str, node: Node, source: str | None) -> str:
        name = self._name(what)
        self.graph.add(name, node)
        if source is not None:
            self.graph.connect(source, name)
        return name

    def _linear(self, n_in: int = WIDTH, n_out: int = WIDTH) -> Linear:
        return Linear(n_in, n_out, dtype=torch.float64)

    def _chain(self, program: list[Block], source: str) -> tuple[str, Eager]:
        steps: list[Eager] = []
        for block in program:
            source, eager = self._block(block, source)
            steps.append(eager)

        def run(x: Tensor, e: Example) -> Tensor:
            for step in steps:
                x = step(x, e)
            return x

        return source, run

    def _block(self, block: Block, source: str) -> tuple[str, Eager]:
        if isinstance(block, tuple):
            return getattr(self, f"_{block[0]}")(source, *block[1:])  # type: ignore[no-any-return]
        if block == "split":
            return self._split(source)
        makers: dict[str, Callable[[], Any]] = {
            "linear": self._linear,
            "tanh": Tanh,
            "relu": Relu,
            "sigmoid": Sigmoid,
            "norm": lambda: LayerNorm(nn.LayerNorm(WIDTH, dtype=torch.float64)),
        }
        node = makers[block]()
        return self._add(block, node, source), lambda x, e: node.reference(x)

    def _split(self, source: str) -> tuple[str, Eager]:
        half = WIDTH // 2
        split = self._add("split", Split({"a": half, "b": WIDTH - half}), source)
        concat = self._add("concat", Concat(("a", "b")), None)
        self.graph.connect(f"{split}.b", f"{concat}.a")
        self.graph.connect(f"{split}.a", f"{concat}.b")
        return concat, lambda x, e: torch.cat((x[:, half:], x[:, :half]), 1)

    def _branch(self, source: str, a: list[Block], b: list[Block]) -> tuple[str, Eager]:
        bcast = self._add("bcast", Bcast(("a", "b")), source)
        concat = self._add("concat", Concat(("a", "b")), None)
        ends = []
        for port, program in (("a", a), ("b", b)):
            last, eager = self._chain(program, f"{bcast}.{port}")
            self.graph.connect(last, f"{concat}.{port}")
            ends.append(eager)
        node = self._linear(2 * WIDTH)
        return self._add("linear", node, concat), lambda x, e: node.reference(
            torch.cat((ends[0](x, e), ends[1](x, e)), 1)
        )

    def _choice(self, source: str, a: list[Block], b: list[Block]) -> tuple[str, Eager]:
        phi, ends = self._either(source, lambda s: s.kind % 2, a, b)
        return phi, lambda x, e: ends[e.kind % 2](x, e)

    def _either(
        self, source: str, which: Callable[[States], Column], a: list[Block], b: list[Block]
    ) -> tuple[str, list[Eager]]:
        cond = self._add("cond", Cond(which, ("a", "b")), source)
        phi = self._add("phi", Phi(("a", "b")), None)
        ends = []
        for port, program in (("a", a), ("b", b)):
            last, eager = self._chain(program, f"{cond}.{port}")
            self.graph.connect(last, f"{phi}.{port}")
            ends.append(eager)
        return phi, ends

    def _loop(self, source: str, a: list[Block]) -> tuple[str, Eager]:
        phi = self._add("phi", Phi(("start", "loop")), None)
        self.graph.connect(source, f"{phi}.start")
        last, eager = self._chain(a, phi)
        isu = self._add("isu", Isu(lambda s: s.replace(step=s.step + 1), lambda s: s.replace(step=s.step - 1)), last)
        cond = self._add("cond", Cond(lambda s: s.step < s.count, ("done", "again")), isu)
        self.graph.connect(f"{cond}.again", f"{phi}.loop")
        reset = self._add("reset", Isu(lambda s: s.replace(step=0), lambda s: s.replace(step=s.count)), f"{cond}.done")

        def run(x: Tensor, e: Example) -> Tensor:
            for _ in range(e.count):
                x = eager(x, e)
            return x

        return reset, run

    def _gather(self, last: str, how: str) -> str:
        group = Group(state=lambda s: s.replace(child=0), size=lambda s: s.fan, order=lambda s: s.child)
        return self._add("reduce", Reduce(how), self._add("group", group, last))  # type: ignore[arg-type]

    def _each(self, source: str, a: list[Block], b: list[Block], how: str) -> tuple[str, Eager]:
        return self._children(self._add("flatmap", Flatmap(_expand), source), a, b, how)

    def _rows(self, source: str, a: list[Block], b: list[Block], how: str) -> tuple[str, Eager]:
        spread = self._add("flatmap", Flatmap(_expand), source)
        group = Group(state=lambda s: s.replace(child=0), size=lambda s: s.fan)
        ungroup = Ungroup(lambda s, i: s.replace(child=i))
        return self._children(self._add("ungroup", ungroup, self._add("group", group, spread)), a, b, how)

    def _children(self, source: str, a: list[Block], b: list[Block], how: str) -> tuple[str, Eager]:
        last, ends = self._either(source, lambda s: s.child % 2, a, b)

        def run(x: Tensor, e: Example) -> Tensor:
            return _reduce([ends[i % 2](x, e) for i in range(e.fan)], how)

        return self._gather(last, how), run


def _reduce(values: list[Tensor], how: str) -> Tensor:
    stacked = torch.stack(values)
    if how == "max":
        return stacked.max(0).values  # the first of equals gets the gradient, as in Reduce
    return stacked.sum(0) if how == "sum" else stacked.mean(0)


_ROW_WISE = st.sampled_from(["linear", "tanh", "relu", "sigmoid", "norm", "split"])
_HOW = st.sampled_from(["sum", "mean", "max"])


def _nest(inner: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
    programs = st.lists(inner, min_size=1, max_size=3)
    flat = st.lists(_ROW_WISE, min_size=1, max_size=2)  # a nested loop would need its own counter
    return st.one_of(
        st.tuples(st.just("branch"), programs, programs),
        st.tuples(st.just("choice"), programs, programs),
        st.tuples(st.just("loop"), flat),
        st.tuples(st.just("each"), flat, flat, _HOW),
        st.tuples(st.just("rows"), flat, flat, _HOW),
    )


def programs(max_leaves: int = 8) -> st.SearchStrategy[list[Block]]:
    """Random programs."""
    return st.lists(st.recursive(_ROW_WISE, _nest, max_leaves=max_leaves), min_size=1, max_size=4)


@st.composite
def examples(draw: st.DrawFn, most: int = 5) -> list[Example]:
    """Random examples: kinds 0 and 1, 1 to 3 rounds of a loop, 1 to 3 children."""
    shapes = draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=most)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = torch.from_numpy(rng.standard_normal((2, len(shapes), 1, WIDTH)))
    return [Example(rows[0, i], rows[1, i], *shape) for i, shape in enumerate(shapes)]


def schedules() -> st.SearchStrategy[dict[str, Any]]:
    """Settings of `ampnet.Inline` that change the order of things but must not change a gradient: waves or messages,
    any number of instances in flight, in any order, batched in any way."""
    size = st.one_of(st.none(), st.integers(1, 4))
    common = {
        "schedule": st.sampled_from(["sweep", "backward-first", "fifo", "random"]),
        "seed": st.integers(0, 2**16),
        "max_active_keys": st.integers(1, 6),
    }
    return st.one_of(
        st.fixed_dictionaries({**common, "wave_size": size}),
        st.fixed_dictionaries({**common, "max_batch": size, "waves": st.just(False)}),
    )
