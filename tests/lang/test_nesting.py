"""Combinators inside of combinators, values from outside, carries of every kind: each model against itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet.lang import (
    Compiled,
    Edges,
    Model,
    Seq,
    Tree,
    choose,
    each,
    fold,
    fold_tree,
    loss,
    messages,
    reduce,
    repeat,
    scan,
)
from ampnet.testing import assert_compiled
from tests.lang.written import WrittenBase

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 3
SCHEDULES: list[dict[str, Any]] = [
    {"max_active_keys": 1},
    {"max_active_keys": 4, "schedule": "random", "seed": 5, "max_batch": 2},
    {"max_active_keys": 3, "schedule": "fifo"},
]


class Written(WrittenBase):
    """A model whose forward is a function of the test: ``(m, x, seq, edges, tree, n, y) -> row``, or None."""

    def forward(self, x: Tensor, seq: Seq, edges: Edges, tree: Tree, n: int, y: Tensor) -> None:
        self.compare(self.body(self, self.a(x), seq, edges, tree, n, y), y)


def instance(rng: np.random.Generator, tokens: int, bonds: int, parents: list[int], n: int) -> tuple[Any, ...]:
    def rows(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    seq = Seq(x=rows(tokens, WIDTH), k=rng.integers(0, 3, tokens), y=rows(tokens, WIDTH))
    ends = rng.integers(0, tokens, (2, bonds))
    edges = Edges(seq, ends[0], ends[1], x=rows(bonds, WIDTH), k=rng.integers(0, 3, bonds))
    size = len(parents)
    tree = Tree(parents, x=rows(size, WIDTH), k=rng.integers(0, 3, size), y=rows(size, WIDTH))
    return rows(WIDTH), seq, edges, tree, n, rows(WIDTH)


def instances() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(7)
    return [
        instance(rng, 2, 3, [2, 2, -1], 2),
        instance(rng, 1, 0, [-1], 0),
        instance(rng, 3, 5, [4, 2, 4, 2, -1], 3),
        instance(rng, 2, 1, [-1, 0, 0], 1),
    ]


def check(body: Callable[..., Any], *, schedules: int = 3) -> Compiled:
    model, data = Written(body), instances()
    for settings in SCHEDULES[:schedules]:
        graph = assert_compiled(model, data, **settings)
    return graph


# -- what is inside of what


def test_a_loop_inside_of_a_tree() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def branch(left: Any, right: Any) -> Any:
            return repeat(lambda h: torch.tanh(m.b(h)), m.two(torch.cat((left, right), -1)), times=2)

        states, root = fold_tree(tree, lambda node: node.x * x, branch)
        return root + reduce(states, "mean")

    check(body)


def test_a_loop_inside_of_a_tree_as_often_as_each_node_says() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def again(h: Any, node: Any) -> Any:
            return repeat(lambda h: torch.tanh(m.b(h)), h, times=node.k)

        _, root = fold_tree(
            tree,
            lambda node: again(node.x * x, node),
            lambda left, right, node: again(left * right, node),
        )
        return root

    check(body)


def test_a_tree_inside_of_a_loop() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def once(h: Any) -> Any:
            _, root = fold_tree(tree, lambda node: m.b(node.x * h), lambda left, right: torch.tanh(left + m.a(right)))
            return root

        return repeat(once, x, times=n)

    check(body)


def test_a_graph_inside_of_a_loop_inside_of_a_fold_over_words() -> None:
    """The words are the nodes of the tree here: those of the graph are another space."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def word(h: Any, node: Any) -> Any:
            def step(v: Any) -> Any:
                return each(m.cell, messages(lambda v, e: m.b(v) * e.x, edges, v), v)

            v = repeat(step, each(lambda t: t * h, seq.x), times=2)
            return torch.tanh(reduce(v, "sum") + node.x)

        return fold(word, tree, x)

    check(body)


def test_a_choice_inside_of_messages_inside_of_a_loop() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(v: Any) -> Any:
            return each(m.cell, messages(lambda v, e: choose(e.k, m.options, v), edges, v), v)

        return reduce(repeat(step, each(lambda t: t * x, seq.x), times=n), "sum")

    check(body)


def test_each_inside_of_each_over_another_space() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def token(t: Any) -> Any:
            return reduce(each(lambda node: torch.tanh(m.b(t.x * node.x)) + x, tree), "max")

        return reduce(each(token, seq), "mean")

    check(body)


def test_a_scan_then_each_then_a_reduction() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        states, last = scan(lambda h, t: m.cell(t.x, h), seq, x)
        return reduce(each(lambda h, t: m.b(h) * t, states, seq.x), "sum") + last

    check(body)


def test_a_fold_inside_of_each_inside_of_a_fold() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def outer(h: Any, node: Any) -> Any:
            return reduce(each(lambda t: m.cell(t.x, h + node.x), seq), "mean")

        return fold(outer, tree, x)

    check(body)


def test_a_choice_of_loops_and_a_loop_of_choices() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        looped = choose(
            n % 2,
            [lambda h: repeat(m.b, h, times=2), lambda h: fold(lambda h, t: torch.tanh(h + t.x), seq, h)],
            x,
        )
        return repeat(lambda h, i: torch.tanh(choose((i + n) % 3, m.options, h)), looped, times=n)

    check(body)


def test_a_choice_inside_of_a_choice() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def inner(h: Any) -> Any:
            return choose((n // 2) % 2, [m.b, lambda h: h * x], h)

        return choose(n % 2, [inner, torch.tanh], m.a(x))

    check(body)


# -- losses anywhere


def count_losses(graph: Compiled) -> list[int]:
    return [graph.instance(*arguments).results or 0 for arguments in instances()]


def test_losses_inside_of_a_loop_are_one_a_round() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(h: Any) -> Any:
            loss(m.b(h), y, "squared_error")
            return torch.tanh(m.a(h))

        return repeat(step, x, times=n)

    assert count_losses(check(body)) == [3, 1, 4, 2]


def test_losses_inside_of_each_inside_of_a_loop() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(h: Any) -> Any:
            each(lambda t: loss(h * t.x, t.y, "squared_error"), seq)
            return torch.tanh(m.a(h))

        return repeat(step, x, times=n)

    assert count_losses(check(body)) == [2 * 2 + 1, 1, 3 * 3 + 1, 1 * 2 + 1]


def test_a_loss_inside_of_one_option_of_a_choice() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def judged(h: Any) -> Any:
            loss(m.b(h), y, "squared_error")
            return h

        return choose(n % 2, [judged, torch.tanh], x)

    assert count_losses(check(body)) == [2, 2, 1, 1]


def test_a_loss_in_the_branches_of_a_tree_and_another_at_the_leaves() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def leaf(node: Any) -> Any:
            loss(m.b(node.x), node.y, "squared_error", name="leaf")
            return node.x * x

        def branch(left: Any, right: Any, node: Any) -> Any:
            loss(left * right, node.y, "squared_error", name="branch")
            return left + right

        fold_tree(tree, leaf, branch)

    assert count_losses(check(body)) == [3, 1, 5, 3]


def test_a_loss_for_every_edge() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        each(lambda e: loss(m.b(e.x * x), y, "squared_error"), edges)
        return m.a(x)

    assert count_losses(check(body)) == [4, 1, 6, 2]


def test_a_loss_along_every_edge_of_a_certain_kind() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def along(v: Any, e: Any) -> Any:
            def judged(v: Any) -> Any:
                loss(v, e.x, "squared_error")
                return v

            return choose(e.k, [judged, m.b, judged], v)

        return reduce(messages(along, edges, each(m.a, seq.x)), "sum")

    graph = check(body)
    wanted = [1 + sum(int(k) != 1 for k in arguments[2]._columns["k"]) for arguments in instances()]
    assert count_losses(graph) == wanted


def test_losses_at_rounds_that_differ_from_node_to_node() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def token(t: Any) -> Any:
            def step(h: Any, i: Any) -> Any:
                choose(i % 2, [lambda h: loss(h, t.y, "squared_error"), lambda h: loss(h, y, "squared_error")], h)
                return torch.tanh(m.b(h))

            return repeat(step, t.x * x, times=t.k)

        return reduce(each(token, seq), "sum")

    wanted = [1 + int(arguments[1]._columns["k"].sum()) for arguments in instances()]
    assert count_losses(check(body)) == wanted


def test_labels_from_outside_inside_of_each() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        each(lambda t: loss(m.b(t.x), y, "squared_error"), seq)
        each(lambda t: loss(m.b(t.x) * x, t.y, "squared_error"), seq)

    check(body)


# -- values from outside


def test_a_value_from_outside_inside_of_a_loop() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        outside = torch.sigmoid(m.b(x))
        return repeat(lambda h: torch.tanh(m.a(h)) * outside + x, x, times=n)

    check(body)


@pytest.mark.parametrize("users", [(0,), (0, 2), (0, 1, 2)])
def test_a_value_from_outside_in_some_options_of_a_choice(users: tuple[int, ...]) -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        outside = torch.sigmoid(m.b(x))
        options = [
            (lambda h, o=o: o(h) * outside) if i in users else (lambda h, o=o: o(h)) for i, o in enumerate(m.options)
        ]
        return choose(n % 3, options, x)

    check(body)


def test_a_choice_all_of_whose_values_come_from_outside() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        return choose(n % 2, [lambda: m.b(x), lambda: torch.tanh(x)])

    check(body)


def test_constants_as_results_of_options_and_branches() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        ones = torch.ones(WIDTH)
        chosen = choose(n % 2, [lambda h: m.b(h), lambda h: ones], x)
        _, root = fold_tree(tree, lambda node: ones, lambda left, right, node: left + right * node.x)
        return chosen * root

    check(body)


def test_constants_as_what_each_element_and_every_edge_gives() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        some = each(lambda t: torch.ones(WIDTH), seq)
        degree = messages(lambda v: torch.full((WIDTH,), 2.0), edges, some)
        return reduce(each(lambda d, t: d * m.b(t), degree, seq.x), "sum") + x

    check(body)


# -- what a loop carries


class Carried(NamedTuple):
    h: Any
    c: Any


def test_loops_that_carry_tuples_named_tuples_lists_and_dictionaries() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h, c = fold(lambda hc, t: m.lstm(t.x, hc), seq, (x, m.zeros(WIDTH)))
        named = repeat(lambda s: Carried(torch.tanh(s.c), s.h * x), Carried(h, c), times=n)
        nested = repeat(lambda s: [s[1][0], (torch.tanh(s[0]), s[1][1])], [h, (c, x)], times=3)
        kept = repeat(lambda s: {"p": m.b(s["q"]), "q": s["p"]}, {"p": named.h, "q": nested[1][0]}, times=n)
        return kept["p"] + kept["q"] * named.c + nested[0] - nested[1][1]

    check(body)


def test_a_loop_that_carries_a_family_and_a_value() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(state: Any) -> Any:
            v, total = state
            v = each(lambda v, t: m.cell(v + total, t), v, seq.x)
            return v, torch.tanh(total + reduce(v, "mean"))

        v, total = repeat(step, (each(lambda t: t * x, seq.x), x), times=n)
        return total + reduce(v, "max")

    check(body)


def test_a_fold_that_carries_a_family_of_another_space() -> None:
    """Once it was refused: fold was the last of scan, which would have a family of families besides."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(state: Any, node: Any) -> Any:
            v, h = state
            return each(lambda v: torch.tanh(m.a(v) + node.x), v), h + reduce(v, "mean")

        v, h = fold(step, tree, (seq.x, x))
        return reduce(v, "sum") * h

    check(body)


def test_families_are_chosen_and_used_inside_of_options_and_loops() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        v = choose(n % 2, [lambda v: each(m.a, v), lambda v: v], seq.x)
        inside = choose(n % 2, [lambda h: reduce(each(lambda a: a * h, v)), torch.tanh], x)
        looped = repeat(lambda h: torch.tanh(h + reduce(each(lambda a: a * h, v))), x, times=n)
        return inside * looped + reduce(each(lambda q: reduce(each(lambda a: a * q, v), "max"), tree.x))

    check(body)


def test_trees_graphs_and_scans_inside_of_options_inside_of_each() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def token(t: Any) -> Any:
            def rooted(h: Any) -> Any:
                return fold_tree(tree, lambda node: node.x * h, lambda a, b: m.a(a) + b)[1]

            def scanned(h: Any) -> Any:
                return reduce(scan(lambda s, node: m.cell(node.x, s), tree, h)[0], "mean")

            return choose(t.k, [rooted, scanned, m.b], t.x * x)

        def node(q: Any) -> Any:
            def sent(h: Any) -> Any:
                return reduce(messages(lambda v, e: m.a(v * h) + e.x, edges, seq.x), "max")

            return choose(q.k, [sent, m.b, m.a], q.x * x)

        return reduce(each(token, seq)) + reduce(each(node, tree))

    check(body)


def test_a_loop_that_carries_families_of_two_spaces() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(state: Any) -> Any:
            v, w = state
            a, b = reduce(v, "mean"), reduce(w, "mean")
            return each(lambda v: torch.tanh(v + b), v), each(lambda w: m.b(w) * a, w)

        v, w = repeat(step, (seq.x, each(lambda t: t + x, tree.x)), times=n)
        return reduce(v, "sum") - reduce(w, "sum")

    check(body)


def test_a_loop_that_carries_rows_of_other_shapes() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(state: Any) -> Any:
            number, row, square = state
            return number + row.sum(), torch.tanh(square @ row) + number, square * row.unsqueeze(0)

        start = (x.sum(), x, torch.outer(x, x))
        number, row, square = repeat(step, start, times=n)
        return row + number + square.sum(0)

    check(body)


def test_a_loop_that_carries_an_integer_as_in_collatz() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def step(state: Any) -> Any:
            h, k = state
            odd = k % 2
            return torch.tanh(choose(odd, [m.a, m.b], h)), (3 * k + 1) * odd + k // 2 * (1 - odd)

        h, k = repeat(step, (x, n + 1), while_=lambda s: s[1] != 1)
        return choose(k, [torch.tanh, lambda h: h * x], h)

    check(body)


def test_loops_that_carry_integers_for_each_element_and_use_them_afterwards() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def token(t: Any) -> Any:
            h, left, passed = repeat(
                lambda s: (torch.tanh(m.b(s[0])), s[1] // 2, s[2] + 1),
                (t.x * x, t.k + n, 0),
                while_=lambda s: s[1] > 0,
            )
            return choose(passed % 3, m.options, h) + choose(left, [m.a], h)

        return reduce(each(token, seq), "sum")

    check(body)


def test_a_loop_that_carries_integers_for_a_number_of_rounds() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h, last, before = repeat(
            lambda s, i: (torch.tanh(choose(s[1] % 3, m.options, s[0])), s[1] + s[2] + i, s[1]), (x, 1, 0), times=n
        )
        return choose((last + before) % 3, m.options, h)

    check(body)


def test_a_loop_inside_of_a_loop_that_counts_with_the_outer_ones_integer() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        def outer(state: Any) -> Any:
            h, k = state
            return repeat(lambda h, i: choose((i + k) % 3, m.options, h), h, times=k % 3), k - 1

        return repeat(outer, (x, n), while_=lambda s: s[1] > 0)[0]

    check(body)


def test_a_number_of_rounds_that_is_fixed_of_the_instance_or_of_each_element() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h = repeat(lambda h: torch.tanh(m.a(h)), x, times=3)
        h = repeat(lambda h: torch.tanh(m.a(h)), h, times=n)
        h = repeat(lambda h: torch.tanh(m.a(h)), h, times=n % 2 + seq.length - 1)
        v = each(lambda t: repeat(lambda h: torch.tanh(m.b(h)), t.x * h, times=t.k), seq)
        return repeat(m.b, reduce(v, "sum"), times=0)

    check(body)


def test_a_number_of_rounds_from_an_array_by_the_number_of_the_round() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        return fold(lambda h, t: repeat(m.b, h, times=t.k) * t.x, seq, x)

    check(body)


def test_less_than_no_round_is_no_round() -> None:
    """As in range(...). Once a loop whose number of rounds was worked out as -2 came out with a wrong state."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h = repeat(lambda h: m.b(h) + x, x, times=n - 2)
        return reduce(each(lambda t: repeat(lambda h: m.b(h) + x, t.x * h, times=t.k - 1), seq), "sum")

    check(body)


def test_a_fold_over_edges_of_which_there_may_be_none() -> None:
    """Once the loop went round at least once, and waited for an edge for ever."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        states, last = scan(lambda h, e: m.cell(e.x, h), edges, x)
        each(lambda h: loss(h, y, "squared_error"), states)
        return last

    check(body)


def test_conditions_are_combined_by_signs() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h = choose((n > 1) & (n != 3) | (n == 0), [m.a, m.b], x)
        return choose(1 - (n > 1), [m.a, m.b], h) * choose((-n) % 3, m.options, h)

    check(body)


# -- parameters and modules


def test_one_module_at_several_scopes_is_one_node() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        v = each(lambda t: m.b(t * x), seq.x)
        h = repeat(lambda h: torch.tanh(m.b(h)), reduce(v, "sum"), times=n)
        _, root = fold_tree(tree, lambda node: m.b(node.x), lambda left, right: m.b(left) * right)
        return m.b(h) + root

    graph = check(body)
    assert sum(node.describe().startswith("Linear") for node in graph.nodes.values()) == 2


def test_a_bare_parameter_as_the_start_of_a_loop_and_in_arithmetic() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        h = fold(lambda h, t: torch.tanh(h * m.scale + t.x), seq, m.scale)
        v = reduce(each(lambda t: h * t * m.scale, seq.x), "sum")
        return v * m.factor + x

    check(body)


ALONE: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda m: (1 - m.scale) / 2 + m.scale * m.factor + (-m.scale) ** 2,
    "functions": lambda m: torch.sigmoid(m.scale) + m.scale.exp() + m.scale.norm(),
    "parts": lambda m: torch.cat((m.scale[1:], m.scale[:1])) + m.scale[0],
    "a module": lambda m: m.b(m.scale) + m.cell(torch.tanh(m.scale), m.scale),
    "of its shape": lambda m: torch.zeros_like(m.scale) + m.scale.shape[0] + m.scale.dim() + m.factor,
    "its view": lambda m: m.scale.view(-1) + m.scale.unsqueeze(0).sum(0),
    "without gradient": lambda m: m.scale.detach() * m.scale,
}


@pytest.mark.parametrize("name", ALONE)
def test_what_is_made_of_parameters_alone_is_trained_too(name: str) -> None:
    """Once it was worked out when the model was compiled, and stayed as it was: torch saw no value in it."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        return ALONE[name](m) * x + ALONE[name](m)

    check(body, schedules=2)


class Raw(nn.Module):
    """With parameters of its own, and of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.weight) + self.get_buffer("shift")


class Modules(Model):
    def __init__(self) -> None:
        super().__init__()
        self.raw = Raw()
        self.bilinear = nn.Bilinear(WIDTH, WIDTH, WIDTH)
        self.stack = nn.Sequential(
            nn.Linear(WIDTH, 5), nn.Tanh(), nn.LayerNorm(5), nn.Dropout(0.0), nn.Linear(5, WIDTH)
        )
        self.slope = nn.PReLU()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, seq: Seq, edges: Edges, tree: Tree, n: int, y: Tensor) -> None:
        h = fold(lambda h, t: self.norm(self.bilinear(self.raw(h), t.x)), seq, self.stack(x))
        loss(self.slope(self.raw(h)), y, "squared_error")


def test_modules_of_every_kind() -> None:
    model, data = Modules(), instances()
    for settings in SCHEDULES:
        graph = assert_compiled(model, data, **settings)
    kinds = {type(node).__name__ for node in graph.nodes.values()}
    assert {"Module", "Linear", "LayerNorm"} <= kinds
    assert "Dropout" not in kinds  # it would do nothing


def test_modules_that_are_given_a_tuple_a_constant_and_nothing_but_rows() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH))

        def forward(self, both: Any, other: Tensor) -> Tensor:
            return both[0] * self.weight + both[1] @ other

    class Uses(Model):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: Tensor, seq: Seq, edges: Edges, tree: Tree, n: int, y: Tensor) -> None:
            h = self.pair((x, torch.ones(WIDTH)), y)
            loss(self.pair((h, x), h), y, "squared_error")

    for settings in SCHEDULES:
        assert_compiled(Uses(), instances(), **settings)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "a Linear on a matrix": (nn.Linear(WIDTH, WIDTH), (2, WIDTH)),
    "a convolution": (nn.Conv1d(2, 2, 1), (2, WIDTH)),
    "a convolution of an image": (nn.Conv2d(1, 2, 2), (1, 2, WIDTH + 1)),
    "an older cell": (nn.RNNCell(WIDTH, WIDTH), (WIDTH,)),
    "a norm of matrices": (nn.LayerNorm([2, WIDTH]), (2, WIDTH)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_work_on_rows_of_their_shape(name: str) -> None:
    layer, shape = LAYERS[name]

    class Layered(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer.double()

        def forward(self, x: Tensor, y: Tensor) -> None:
            h = self.layer(x)
            loss(h.reshape(-1, WIDTH).sum(0), y, "squared_error")

    data = [(torch.randn(shape), torch.randn(WIDTH)) for _ in range(3)]
    assert_compiled(Layered(), data, max_active_keys=3)


def test_an_embedding_of_several_words_and_arguments_by_keyword() -> None:
    class Keyword(Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.a, self.cell = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

        def forward(self, words: Tensor, y: Tensor) -> None:
            h = self.a(input=self.embed(words).sum(0))
            loss(self.cell(h, hx=y), y, "squared_error")

    data = [(torch.tensor([1, i, 3]), torch.randn(WIDTH)) for i in range(3)]
    assert_compiled(Keyword(), data, max_active_keys=3)


def test_integer_tensors_are_carried_chosen_and_looked_up() -> None:
    class Words(Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, WIDTH)

        def forward(self, word: Tensor, words: Seq, n: int, y: Tensor) -> None:
            word = fold(lambda w, other: (w + other) % 9, words, word)
            word = choose(n, [lambda w: w, lambda w: (w * 2) % 9], word)
            loss(self.embed(word) * word, y, "squared_error")

    data = [(torch.tensor(i), Seq(torch.tensor([i, 8 - i])), i % 2, torch.randn(WIDTH)) for i in range(4)]
    assert_compiled(Words(), data, max_active_keys=3)


MADE: dict[str, Callable[[], nn.Module]] = {
    "a hook": lambda: _hooked(nn.Linear(WIDTH, WIDTH), lambda m: m.register_forward_hook(lambda m, x, y: y * 2)),
    "a hook in front": lambda: _hooked(
        nn.Linear(WIDTH, WIDTH), lambda m: m.register_forward_pre_hook(lambda m, x: (x[0] * 2,))
    ),
    "a normalised weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "no bias": lambda: nn.Sequential(nn.LayerNorm(WIDTH, bias=False, eps=0.1), nn.Linear(WIDTH, WIDTH, bias=False)),
    "no parameters": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)),
}


def _hooked(module: nn.Module, add: Callable[[nn.Module], Any]) -> nn.Module:
    add(module)
    return module


@pytest.mark.parametrize("name", MADE)
def test_modules_that_are_not_quite_what_their_kind_says(name: str) -> None:
    """Once hooks of a Linear were passed over: it became the node of its kind."""

    class Uses(Model):
        def __init__(self) -> None:
            super().__init__()
            self.module = MADE[name]().double()

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(self.module(x), y, "squared_error")

    assert_compiled(Uses(), [(torch.randn(WIDTH), torch.randn(WIDTH)) for _ in range(3)], max_active_keys=2)


def test_an_embedding_does_not_train_its_padding() -> None:
    class Padded(Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(3, WIDTH, padding_idx=1)

        def forward(self, word: Tensor, y: Tensor) -> None:
            loss(self.embed(word), y, "squared_error")

    assert_compiled(Padded(), [(torch.tensor(i % 3), torch.randn(WIDTH)) for i in range(5)], max_active_keys=2)


def test_dropout_does_nothing_in_inference() -> None:
    from ampnet.testing import assert_judged

    class Dropped(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(self.drop(self.a(x)), y, "squared_error")

    from ampnet.lang import compile

    model = Dropped()
    data = [(torch.randn(WIDTH), torch.randn(WIDTH)) for _ in range(3)]
    graph = compile(model, *data[0])
    assert "Dropout" in {type(node).__name__ for node in graph.nodes.values()}
    assert_judged(graph, model.eval(), data, max_active_keys=2)


# -- torch functions


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, w: torch.softmax(x, -1) + x.softmax(0),
    "log_softmax": lambda x, w: torch.nn.functional.log_softmax(x, dim=-1),
    "gelu": lambda x, w: torch.nn.functional.gelu(x) + torch.nn.functional.silu(x),
    "where": lambda x, w: torch.where(x > 0, x, w * 2) + torch.where(w > x, 1.0, w),
    "clamp": lambda x, w: x.clamp(-0.5, 0.5) * torch.clamp(w, min=0),
    "norm": lambda x, w: x / x.norm() + torch.linalg.vector_norm(w),
    "shapes": lambda x, w: (x.unsqueeze(0) * w.unsqueeze(1)).reshape(-1).view(WIDTH, WIDTH).sum(0),
    "permuted": lambda x, w: torch.outer(x, w).T.transpose(0, 1).permute(1, 0).mean(0).flip(0),
    "matmul": lambda x, w: x * (x @ x) + torch.dot(x, w) * w,
    "stack": lambda x, w: torch.stack((x, w)).mean(0) + torch.stack([x, w], -1).sum(-1),
    "parts": lambda x, w: torch.cat((x[1:], x[:1])) + torch.cat([x[-1:], w[:2]], dim=-1) + w[0],
    "chunks": lambda x, w: torch.cat(torch.split(x, [1, 2])[::-1]) + torch.cat((*w.chunk(3), ), -1) + x.split(1)[1],
    "arithmetic": lambda x, w: (2 - x) * 3 / (1 + w * w) - x**2 + (-w) ** 3 + 1 / (2 + x.exp()) + 0.5 * x,
    "reductions": lambda x, w: x - x.mean() + w.max() + x.sum(-1, keepdim=True) + torch.logsumexp(w, 0),
    "comparison": lambda x, w: x * (w > 0).to(x.dtype) + (x <= w).double() * w,
    "minimum": lambda x, w: torch.minimum(x, w) + torch.maximum(x, 2 * w) + x.abs() + w.sign() * x,
    "several results": lambda x, w: x.sort().values + torch.topk(w, 1).values + torch.unbind(x)[0] * w.max(0).values,
    "with settings": lambda x, w: torch.add(x, w, alpha=2) + nn.functional.leaky_relu(x, 0.3) + x.lerp(w, 0.25),
    "constants": lambda x, w: x * torch.arange(3.0) + torch.tensor([1.0, 2.0, 3.0]) @ torch.outer(w, x) + torch.ones(1),
    "einsum": lambda x, w: torch.einsum("i,j->ij", x, w).diagonal(),
    "of the shape": lambda x, w: x * x.shape[0] + w.size(0) + x.numel() + x.dim() + len(w),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_functions_mean_the_same_on_messages(name: str) -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        w = reduce(each(lambda t: FUNCTIONS[name](m.b(t), x), seq.x), "sum")
        return FUNCTIONS[name](x, w)

    check(body, schedules=2)


def test_rows_of_any_shape_are_reduced_sent_and_chosen() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        squares = each(lambda t: torch.outer(t, x), seq.x)
        numbers = each(lambda t: m.b(t).sum(), seq.x)
        sent = messages(lambda s, e: s * e.x, edges, squares, reduction="mean")
        counted = messages(lambda s: s * 2, edges, numbers)
        square = choose(n % 2, [lambda s: s @ s, torch.tanh], reduce(sent, "sum") + reduce(squares, "max"))
        number = reduce(counted, "sum") + reduce(numbers, "logsumexp")
        _, root = fold_tree(
            tree, lambda node: torch.outer(node.x, x), lambda s: torch.tanh(reduce(s, "sum")), children="family"
        )
        return square.sum(0) * number + root[0]

    check(body)


def test_a_tree_of_numbers_and_of_pairs() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        _, pair = fold_tree(
            tree, lambda node: (m.b(node.x), node.x * x), lambda a, b: (torch.tanh(a[0] + b[1]), a[1] - b[0])
        )
        _, number = fold_tree(tree, lambda node: node.x.sum(), lambda a, b, node: torch.tanh(a - b) + node.x[0])
        return pair[0] * pair[1] + number

    check(body)


# -- reductions


@pytest.mark.parametrize("how", ["sum", "mean", "max", "logsumexp"])
def test_reductions(how: Any) -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        arrived = messages(lambda v: v * x, edges, each(m.b, seq.x), reduction=how)
        _, root = fold_tree(
            tree,
            lambda node: node.x,
            lambda cs, node: torch.tanh(m.b(reduce(cs, how)) + node.x),
            children="family",
        )
        return reduce(each(m.a, arrived), how) + root

    check(body)


def test_trees_whose_nodes_have_any_number_of_children() -> None:
    class Sums(Model):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Linear(WIDTH, WIDTH)

        def forward(self, tree: Tree, y: Tensor) -> None:
            states, _ = fold_tree(
                tree,
                leaf=lambda node: self.b(node.x),
                branch=lambda children, node: torch.tanh(reduce(children, "mean") + self.b(node.x)),
                children="family",
            )
            each(lambda h: loss(h, y, "squared_error"), states)

    shapes = [[1, -1, 1, 1, 2], [-1], [-1, 0, 0, 0, 0, 1], [1, 2, 3, -1]]
    data = [(Tree(p, x=torch.randn(len(p), WIDTH)), torch.randn(WIDTH)) for p in shapes]
    for settings in SCHEDULES:
        assert_compiled(Sums(), data, **settings)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_messages_that_look_at_both_ends_and_at_the_edge(how: Any) -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        v, w = each(m.b, seq.x), each(lambda t: t * x, seq.y)
        three = messages(lambda a, b, e: m.a(a * e.x) + b, edges, v, to=w, reduction=how)
        two = messages(lambda a, b: torch.tanh(a - b), edges, v, to=w, reduction=how)
        pair = messages(lambda a, e: (a, e.x), edges, w, reduction=how)
        return reduce(each(lambda p, q, r, s: p * q + r * s, three, two, *pair), "sum")

    check(body)


def test_values_for_each_edge_are_reduced_by_themselves() -> None:
    """Of edges there may be none, which has no reduction; so every instance here has some."""

    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        return reduce(each(lambda e: choose(e.k, m.options, e.x * x), edges), "mean")

    model, data = Written(body), [i for i in instances() if len(i[2])]
    for settings in SCHEDULES:
        assert_compiled(model, data, **settings)


# -- losses of every kind


def test_losses_of_every_kind() -> None:
    def huber(prediction: Tensor, label: Tensor) -> Tensor:
        return nn.functional.huber_loss(prediction, label, reduction="none").sum(-1)

    class Losses(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor, seq: Seq, label: Tensor, answer: Tensor, y: Tensor) -> None:
            h = self.a(x)
            loss(h, label, name="class", weight=0.3)
            loss(each(lambda t: self.score(t * h), seq), answer, "selection")
            loss(each(lambda t: (t * h).sum(), seq), answer, "selection", weight=2)
            loss(h, y, huber, metrics={"far": lambda p, t: (p - t).abs().amax(-1)})
            loss(h.sum(), y[0], "squared_error")
            loss(torch.outer(h, h), torch.outer(y, y), "squared_error", metrics={})
            each(lambda t: loss(t * h, label), seq)

    data = [
        (torch.randn(WIDTH), Seq(torch.randn(n, WIDTH)), torch.tensor(n - 1), torch.tensor(n // 2), torch.randn(WIDTH))
        for n in (1, 2, 3)
    ]
    for settings in SCHEDULES:
        graph = assert_compiled(Losses(), data, **settings)
    from ampnet import Inline

    with Inline(graph) as runtime:
        assert "loss.far" in runtime.infer(graph.instances(data)).metrics


# -- names


def test_names_of_arguments_and_modules_may_be_anything() -> None:
    """Nodes, inputs and state fields are named after the model's own names, which may clash."""

    class Clash(Model):
        def __init__(self) -> None:
            super().__init__()
            self.cat, self.instance_, self.phi = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(3, 3)
            self.x, self.round_phi = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.stack = nn.ModuleDict({"one": nn.Linear(WIDTH, WIDTH)})
            self.stack_one = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, instance: int, columns: Seq, fields: int, loss_: Tensor) -> None:
            h = self.cat(torch.cat((self.x(x), self.instance_(x)), -1))
            h = repeat(lambda h: choose(fields, [self.phi, self.round_phi], h), h, times=instance)
            h = fold(lambda h, t: torch.tanh(h + t), columns, h)
            loss(self.stack["one"](self.stack_one(h)), loss_, "squared_error", name="cat")

    data = [(torch.randn(WIDTH), k, Seq(torch.randn(k + 1, WIDTH)), k % 2, torch.randn(WIDTH)) for k in (2, 0, 1)]
    for settings in SCHEDULES:
        assert_compiled(Clash(), data, **settings)
