"""Random models for Hypothesis: programs of nested combinators, as `ampnet.testing.strategies` has them of nodes.

A *program* is a list of blocks applied to one row. A block is a name, or a name with numbers and inner programs:

    "linear" "other" "tanh" "relu" "softmax" "norm"    row-wise, the modules shared by all that use them
    "scale" "shift"                                    arithmetic with bare parameters
    "outer" "first"                                    with the row that the program was given; with the instance's own
    "loss"                                             a loss on the spot, whatever is around it
    ("choose", index, programs)                        one of several programs
    ("repeat", count, program)                         so many rounds: a fixed number, or an integer of what is around
    ("while", program)                                 halves an integer until nothing is left of it
    ("fold", program) ("scan", program, a, how)        over the tokens
    ("each", space, program, how)                      for every token, node or edge, then reduced
    ("tree", leaf, branch, how)                        from the leaves up
    ("graph", along, step, rounds, how)                messages along edges, a number of times, then reduced

``index`` and ``count`` are numbers that pick one of the integers at hand: those of the instance, of the elements that
the program is inside of, and of the rounds. Where a block would go through elements that the program is inside of
already, it does nothing. The model runs as it is written; eagerly it is its own oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet.lang import Edges, Model, Seq, Tree, choose, each, fold, fold_tree, loss, messages, reduce, repeat, scan

WIDTH = 3
OPTIONS = 3
"""Every integer of an instance is less than this, so that it may choose among as many options."""

Block = str | tuple[Any, ...]
Program = list[Block]


@dataclass(frozen=True)
class Around:
    """What a program is inside of."""

    outer: Any
    """The row it was given."""
    ints: tuple[Any, ...]
    """Integers that it may ask for."""
    spaces: frozenset[str] = frozenset()
    """Spaces whose elements are being gone through."""
    target: Any = None
    """What a loss is held against."""


@dataclass
class _Spaces:
    x: Any
    tokens: Any
    bonds: Any
    tree: Any
    steps: Any
    by_name: dict[str, Any] = field(default_factory=dict)


class WrittenModel(Model):
    """A program as a model. Its arguments are drawn by `written_instances`."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        super().__init__()
        self.program = program
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.linear, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.join = nn.Linear(2 * WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.cell = nn.GRUCell(WIDTH, WIDTH)
            self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(OPTIONS))
            self.scale, self.shift = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(()))
        self.double()

    def forward(self, x: Tensor, tokens: Seq, bonds: Edges, tree: Tree, kind: int, steps: int, target: Tensor) -> None:
        at = _Spaces(x, tokens, bonds, tree, steps, {"tokens": tokens, "bonds": bonds, "tree": tree})
        # A Linear in front of everything: its gradient tells whether the row's own gradient came back right.
        h = self._run(self.program, self.linear(x), Around(x, (kind, steps), target=target), at)
        loss(h, target, "squared_error")

    def _run(self, program: Program, h: Any, around: Around, at: _Spaces) -> Any:
        around = replace(around, outer=h)
        for block in program:
            if isinstance(block, str):
                h = self._row(block, h, around, at)
            else:
                h = getattr(self, f"_{block[0]}")(h, around, at, *block[1:])
        return h

    def _row(self, block: str, h: Any, around: Around, at: _Spaces) -> Any:
        if block == "loss":
            loss(self.other(h), around.target, "squared_error", name="inner", weight=0.5)
            return h
        rows: dict[str, Callable[[], Any]] = {
            "linear": lambda: self.linear(h),
            "other": lambda: self.other(h),
            "norm": lambda: self.norm(h),
            "tanh": lambda: torch.tanh(h),
            "relu": lambda: torch.relu(h),
            "softmax": lambda: torch.softmax(h, -1),
            "scale": lambda: h * self.scale,
            "shift": lambda: h - self.shift,
            "outer": lambda: self.join(torch.cat((h, around.outer), -1)),
            "first": lambda: h + at.x,
        }
        return rows[block]()

    def _choose(self, h: Any, around: Around, at: _Spaces, index: int, programs: list[Program]) -> Any:
        chosen = around.ints[index % len(around.ints)]
        options = [lambda h, p=p: self._run(p, h, around, at) for p in programs]
        return choose(chosen % len(options), options, h)

    def _repeat(self, h: Any, around: Around, at: _Spaces, count: int, program: Program) -> Any:
        if count < 0:  # a fixed number
            return repeat(lambda h: torch.tanh(self._run(program, h, around, at)), h, times=-count)
        times = around.ints[count % len(around.ints)] % OPTIONS

        def body(h: Any, i: Any) -> Any:
            return torch.tanh(self._run(program, h, replace(around, ints=(*around.ints, i)), at))

        return repeat(body, h, times=times)

    def _while(self, h: Any, around: Around, at: _Spaces, program: Program) -> Any:
        def body(carry: Any) -> Any:
            h, n = carry
            return torch.tanh(self._run(program, h, replace(around, ints=(*around.ints, n)), at)), n // 2

        return repeat(body, (h, around.ints[-1] + 1), while_=lambda carry: carry[1] > 0)[0]

    def _inside(self, around: Around, space: str, element: Any) -> Around:
        return replace(
            around,
            ints=(*around.ints, element.kind),
            spaces=around.spaces | {space},
            target=element.x if space != "bonds" else around.target,
        )

    def _fold(self, h: Any, around: Around, at: _Spaces, program: Program) -> Any:
        return self._scan(h, around, at, program, None, "sum")

    def _scan(self, h: Any, around: Around, at: _Spaces, program: Program, then: Program | None, how: str) -> Any:
        if "tokens" in around.spaces:
            return h

        def step(h: Any, token: Any) -> Any:
            return torch.tanh(self._run(program, self.cell(token.x, h), self._inside(around, "tokens", token), at))

        if then is None:
            return fold(step, at.tokens, h)
        states, last = scan(step, at.tokens, h)
        made = each(lambda s, t: self._run(then, s, self._inside(around, "tokens", t), at), states, at.tokens)
        return reduce(made, how) + last  # type: ignore[arg-type]

    def _each(self, h: Any, around: Around, at: _Spaces, space: str, program: Program, how: str) -> Any:
        if space in around.spaces:
            return h
        if space == "bonds":  # there may be none: they end at the tokens, of which there is at least one
            return self._graph(h, around, at, program, [], 1, how)

        def element(e: Any) -> Any:
            return self._run(program, h * e.x, self._inside(around, space, e), at)

        return reduce(each(element, at.by_name[space]), how)  # type: ignore[arg-type]

    def _tree(self, h: Any, around: Around, at: _Spaces, leaf: Program, branch: Program, how: str | None) -> Any:
        if "tree" in around.spaces:
            return h

        def at_leaf(node: Any) -> Any:
            return self._run(leaf, node.x + h, self._inside(around, "tree", node), at)

        def reduced(children: Any, node: Any) -> Any:
            return torch.tanh(self._run(branch, children, self._inside(around, "tree", node), at))

        def pair(left: Any, right: Any, node: Any) -> Any:
            return reduced(self.join(torch.cat((left, right), -1)) + node.x, node)

        states, root = fold_tree(at.tree, at_leaf, pair if how is None else reduced, reduction=how)  # type: ignore[arg-type]
        return reduce(each(torch.tanh, states), "mean") + root

    def _graph(self, h: Any, around: Around, at: _Spaces, along: Program, step: Program, rounds: int, how: str) -> Any:
        if around.spaces & {"tokens", "bonds"}:
            return h
        every = frozenset({"tokens", "bonds"})

        def message(a: Any, b: Any, bond: Any) -> Any:
            inside = replace(self._inside(around, "bonds", bond), spaces=around.spaces | every)
            return self._run(along, a * b + bond.x, inside, at)

        def one(values: Any) -> Any:
            arrived = messages(message, at.bonds, values, to=values, reduction=how)  # type: ignore[arg-type]
            return each(
                lambda m, v, t: torch.tanh(self._run(step, self.cell(m, v), self._inside(around, "tokens", t), at)),
                arrived,
                values,
                at.tokens,
            )

        return reduce(repeat(one, each(lambda t: t.x * h, at.tokens), times=rounds), "mean")


_HOW = st.sampled_from(["sum", "mean", "max", "logsumexp"])
_ROW_WISE = st.sampled_from(
    ["linear", "other", "tanh", "relu", "softmax", "norm", "scale", "shift", "outer", "first", "loss"]
)


def _nest(inner: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
    some = st.lists(inner, min_size=1, max_size=2)
    number = st.integers(0, 5)
    return st.one_of(
        st.tuples(st.just("choose"), number, st.lists(some, min_size=2, max_size=OPTIONS)),
        st.tuples(st.just("repeat"), st.integers(-3, 5), some),
        st.tuples(st.just("while"), some),
        st.tuples(st.just("fold"), some),
        st.tuples(st.just("scan"), some, some, _HOW),
        st.tuples(st.just("each"), st.sampled_from(["tokens", "tree", "bonds"]), some, _HOW),
        st.tuples(st.just("tree"), some, some, st.sampled_from([None, "sum", "mean"])),
        st.tuples(st.just("graph"), some, some, st.integers(1, 2), st.sampled_from(["sum", "mean", "max"])),
    )


def written_programs(max_leaves: int = 5) -> st.SearchStrategy[Program]:
    """Random programs of nested combinators."""
    return st.lists(st.recursive(_ROW_WISE, _nest, max_leaves=max_leaves), min_size=1, max_size=3)


@st.composite
def written_instances(draw: st.DrawFn, most: int = 4) -> list[tuple[Any, ...]]:
    """Random arguments of `WrittenModel`: 1 to 3 tokens, 0 to 4 edges, binary trees of 1 to 3 leaves."""
    shapes = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
            min_size=1,
            max_size=most,
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [_instance(rng, *shape) for shape in shapes]


def example(seed: int = 0) -> tuple[Any, ...]:
    """An instance to compile by: with an inner node and an edge."""
    return _instance(np.random.default_rng(seed), 2, 2, 2, 1, 1)


def _instance(rng: np.random.Generator, n: int, edges: int, leaves: int, kind: int, steps: int) -> tuple[Any, ...]:
    from ampnet.data.generated import random_tree

    def rows(count: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((count, WIDTH)))

    def ints(count: int) -> Any:
        return rng.integers(0, OPTIONS, count)

    parents = random_tree(leaves, rng)
    tokens = Seq(x=rows(n), kind=ints(n))
    bonds = Edges(tokens, rng.integers(0, n, edges), rng.integers(0, n, edges), x=rows(edges), kind=ints(edges))
    tree = Tree(parents, x=rows(len(parents)), kind=ints(len(parents)))
    return rows(1)[0], tokens, bonds, tree, kind, steps, rows(1)[0]
