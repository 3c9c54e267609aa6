"""WrittenModel: a program as a model. One method for each block that holds programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ampnet.lang import Edges, Seq, Tree, choose, each, fold, fold_tree, loss, messages, reduce, repeat, scan
from ampnet.testing.written.cells import CELLS, Cell
from ampnet.testing.written.children import READS
from ampnet.testing.written.instances import OPTIONS
from ampnet.testing.written.rows import ROWS, Around
from ampnet.testing.written.sequences import REDUCTIONS, SequenceBlocks, gathered

Block = str | tuple[Any, ...]
Program = list[Block]


def quartic(prediction: Tensor, label: Tensor) -> Tensor:
    """A loss of a user's own: a number for each row."""
    return (torch.tanh(prediction - label) ** 4).sum(-1)


LOSSES: tuple[str, ...] = ("squared_error", "absolute_error", "cross_entropy", "quartic")
SOURCES = ("x", "word", "both")
"""The initial value of a leaf: its row and the program's, an embedding, or an embedding times the program's row."""
USES = ("both", "root", "states", "losses")
"""The results of a tree that are used: the root's, the mean of all nodes, both; or the root's, and a loss at each."""


class WrittenModel(SequenceBlocks):
    """A program as a model, in float64. `example` has the arguments to compile it with."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        super().__init__(seed)
        self.program = program

    def forward(
        self,
        x: Tensor,
        tokens: Seq,
        words: Seq,
        bonds: Edges,
        tree: Tree,
        bush: Tree,
        kind: int,
        steps: int,
        word: Tensor,
        rare: Tensor,
        pick: Tensor,
        target: Tensor,
        label: Tensor,
    ) -> Any:
        at = {"x": x, "tokens": tokens, "words": words, "bonds": bonds, "tree": tree, "bush": bush, "pick": pick}
        around = Around(at, x, x, word, rare, target, label, (kind, steps))
        # A Linear in front of everything: its gradient tells whether the row's own gradient came back right.
        h = self.run(self.program, self.linear(x), around)
        loss(h, target, "squared_error")
        return h, self.other(h)

    def run(self, program: Program, h: Any, around: Around) -> Any:
        """Apply the blocks of a program to a row."""
        around = replace(around, outer=h)
        for block in program:
            if isinstance(block, str):
                h = ROWS[block](self, h, around)
            else:
                h = getattr(self, f"do_{block[0]}")(h, around, *block[1:])
        return h

    def runs(self, program: Program, around: Around) -> Callable[[Any], Any]:
        return lambda h: self.run(program, h, around)

    # -- losses

    def do_loss(self, h: Any, around: Around, kind: str, weight: float = 1.0) -> Any:
        function = quartic if kind == "quartic" else kind
        label = around.label if kind == "cross_entropy" else around.target
        loss(self.other(h), label, function, name="inner", weight=weight)  # type: ignore[arg-type]
        return h

    def do_select(self, h: Any, around: Around) -> Any:
        if "tokens" not in around.spaces:
            scores = each(lambda token: (self.key(token.x) * h).sum(-1), around.at["tokens"])
            loss(scores, around.at["pick"], "selection", name="selected")
        return h

    def do_judge(self, h: Any, around: Around, index: int, kinds: list[str]) -> Any:
        def judge(kind: str) -> Callable[[Any], None]:
            return lambda h: None if kind == "none" else (self.do_loss(h, around, kind), None)[1]

        choose(self._int(around, index) % len(kinds), [judge(kind) for kind in kinds], h)
        return h

    # -- beside the row itself

    def do_residual(self, h: Any, around: Around, program: Program) -> Any:
        return h + self.run(program, h, around)

    def do_gate(self, h: Any, around: Around, program: Program) -> Any:
        return h * torch.sigmoid(self.run(program, h, around))

    # -- choices

    def _int(self, around: Around, index: int) -> Any:
        return around.ints[index % len(around.ints)]

    def do_option(self, h: Any, around: Around, index: int) -> Any:
        return choose(self._int(around, index) % OPTIONS, self.options, h)

    def do_choose(self, h: Any, around: Around, index: int, programs: list[Program]) -> Any:
        options = [self.runs(program, around) for program in programs]
        return choose(self._int(around, index) % len(options), options, h)

    def do_pair(self, h: Any, around: Around, index: int, programs: list[Program]) -> Any:
        def option(program: Program) -> Callable[[Any, Any], Any]:
            return lambda h, x: (self.run(program, h, around), h * x)

        options = [option(program) for program in programs]
        a, b = choose(self._int(around, index) % len(options), options, h, around.x)
        return a + b

    # -- loops

    def do_repeat(self, h: Any, around: Around, count: int, kind: str, program: Program) -> Any:
        cell = CELLS[kind]
        if count < 0:  # a fixed number
            made = repeat(
                lambda carry: cell.step(self, carry, around.x, self.runs(program, around)),
                cell.start(self, h),
                times=-count,
            )
            return cell.out(made)

        def body(carry: Any, i: Any) -> Any:
            inside = replace(around, ints=(*around.ints, i))
            return cell.step(self, carry, around.x, self.runs(program, inside))

        return cell.out(repeat(body, cell.start(self, h), times=self._int(around, count) % OPTIONS))

    def do_while(self, h: Any, around: Around, program: Program) -> Any:
        def body(carry: Any) -> Any:
            h, n = carry
            return torch.tanh(self.run(program, h, replace(around, ints=(*around.ints, n)))), n // 2

        return repeat(body, (h, around.ints[-1] % OPTIONS + 1), while_=lambda carry: carry[1] > 0)[0]

    def _step(self, around: Around, space: str, cell: Cell, program: Program) -> Callable[[Any, Any], Any]:
        return lambda carry, e: cell.step(self, carry, e.x, self.runs(program, around.inside(space, e)))

    def do_fold(self, h: Any, around: Around, space: str, kind: str, program: Program) -> Any:
        if self.skips(around, space) or (space == "bonds" and "tokens" in around.spaces):
            return h
        cell = CELLS[kind]
        return cell.out(fold(self._step(around, space, cell, program), around.at[space], cell.start(self, h)))

    def do_scan(self, h: Any, around: Around, space: str, kind: str, program: Program, then: Program, how: Any) -> Any:
        if self.skips(around, space):
            return h
        cell, elements = CELLS[kind], around.at[space]
        states, last = scan(self._step(around, space, cell, program), elements, cell.start(self, h))
        rows = _rows(states, cell.out)
        made = each(lambda s, e: self.run(then, s, around.inside(space, e)), rows, elements)
        return reduce(made, how) + cell.out(last)

    def do_stack(self, h: Any, around: Around, space: str, lower: str, upper: str, how: Any) -> Any:
        if self.skips(around, space):
            return h
        first, second = CELLS[lower], CELLS[upper]
        states, _ = scan(self._step(around, space, first, []), around.at[space], first.start(self, h))
        above, last = scan(
            lambda carry, x: second.step(self, carry, x, lambda h: h), _rows(states, first.out), second.start(self, h)
        )
        return reduce(_rows(above, second.out), how) * second.out(last)

    # -- every element

    def do_each(self, h: Any, around: Around, space: str, program: Program, how: Any) -> Any:
        if self.skips(around, space):
            return h
        if space == "bonds":  # there may be none: they end at the tokens, of which there is at least one
            return self.do_graph(h, around, program, "gru", [], 1, how)
        made = each(lambda e: self.run(program, h * e.x, around.inside(space, e)), around.at[space])
        return reduce(made, how)

    def do_column(self, h: Any, around: Around, space: str, how: Any) -> Any:
        return h if self.skips(around, space) else h * reduce(around.at[space].x, how)

    def do_attend(self, h: Any, around: Around, space: str, how: str) -> Any:
        if self.skips(around, space):
            return h
        elements, query = around.at[space], self.query(h)
        scores = each(lambda e: (query * torch.tanh(self.key(e.x))).sum(-1, keepdim=True), elements)
        if how == "logsumexp":
            total = reduce(scores, "logsumexp")
            weights = each(lambda s: torch.exp(s - total), scores)
        else:
            largest = reduce(scores, "max") if how == "max" else torch.zeros(1, dtype=torch.float64)
            raised = each(lambda s: torch.exp(s - largest), scores)
            sum_of_all = reduce(raised, "sum")
            weights = each(lambda r: r / sum_of_all, raised)
        return reduce(each(lambda w, e: w * self.other(e.x), weights, elements), "sum") + h

    # -- trees

    def do_tree(self, h: Any, around: Around, reads: str, source: str, leaf: Program, branch: Program, use: str) -> Any:
        if "tree" in around.spaces:
            return h
        children = READS[reads]

        def at_leaf(node: Any) -> Any:
            sources = {
                "x": lambda: node.x + h,
                "word": lambda: self.few(node.token),
                "both": lambda: self.many(node.rare) * h,
            }
            return children.leaf(self, self.run(leaf, sources[source](), around.inside("tree", node)))

        def at_branch(left: Any, right: Any, node: Any) -> Any:
            return children.branch(self, left, right, node, self.runs(branch, around.inside("tree", node)))

        made = fold_tree(around.at["tree"], at_leaf, at_branch)
        return self._used(*made, children.out, around, "tree", use)

    def do_bush(self, h: Any, around: Around, kind: str, leaf: Program, branch: Program, how: Any, use: str) -> Any:
        if "bush" in around.spaces:
            return h
        cell = CELLS[kind]

        def at_leaf(node: Any) -> Any:
            return cell.start(self, self.run(leaf, node.x + h, around.inside("bush", node)))

        made = fold_tree(
            around.at["bush"],
            at_leaf,
            lambda children, node: self._step(around, "bush", cell, branch)(
                gathered(self, children, how, node.x), node
            ),
            children="family",
        )
        return self._used(*made, cell.out, around, "bush", use)

    def _used(self, states: Any, root: Any, out: Callable[[Any], Any], around: Around, space: str, use: str) -> Any:
        """Combine the results of a tree."""
        rows = _rows(states, out)
        if use == "losses":
            each(lambda s, node: self._at_node(s, around.inside(space, node)), rows, around.at[space])
        mean = reduce(each(torch.tanh, rows), "mean") if use in ("both", "states") else None
        if use == "states":
            return mean
        return out(root) if mean is None else mean + out(root)

    def _at_node(self, state: Any, around: Around) -> None:
        self.do_loss(state, around, "cross_entropy")
        self.do_loss(state, around, "absolute_error", 0.5)

    # -- edges

    def do_graph(self, h: Any, around: Around, along: Program, kind: str, step: Program, rounds: int, how: Any) -> Any:
        if around.spaces & {"tokens", "bonds"}:
            return h
        cell, tokens = CELLS[kind], around.at["tokens"]
        every = frozenset({"tokens", "bonds"})

        def message(a: Any, b: Any, bond: Any) -> Any:
            inside = replace(around.inside("bonds", bond), spaces=around.spaces | every)
            return self.run(along, a * b + bond.x, inside)

        def one(carries: Any) -> Any:
            values = _rows(carries, cell.out)
            arrived = messages(
                message,
                around.at["bonds"],
                values,
                to=values,
                reduction=how if how in REDUCTIONS else lambda family, target: gathered(self, family, how, target),
            )

            def after(m: Any, token: Any, *parts: Any) -> Any:
                carry = parts if isinstance(carries, tuple) else parts[0]
                return cell.step(self, carry, m, self.runs(step, around.inside("tokens", token)))

            return each(after, arrived, tokens, *_parts(carries))

        start = each(lambda token: cell.start(self, token.x * h), tokens)
        return reduce(_rows(repeat(one, start, times=rounds), cell.out), "mean")


def _parts(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


def _rows(states: Any, out: Callable[[Any], Any]) -> Any:
    """Returns the rows that every element returned: one family of several."""
    return each(lambda *parts: out(parts if isinstance(states, tuple) else parts[0]), *_parts(states))
