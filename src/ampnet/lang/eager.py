"""Eager: the combinators in plain torch, for one instance. Used for debugging, and as the oracle of every test.

Each combinator is a plain Python loop with autograd: a breakpoint in the model's code stops at real tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ampnet.errors import DataError, ModelError
from ampnet.lang.edges import Edges
from ampnet.lang.family import Family
from ampnet.lang.line import here
from ampnet.lang.nest import along, leaves, rebuild, takes
from ampnet.lang.spaces import Many, Members, Nothing, Space, zero_like
from ampnet.lang.tree import Tree
from ampnet.nodes.metrics import Ratio

Body = Callable[..., Any]

record: ContextVar[list[Judged] | None] = ContextVar("record", default=None)
"""The list that collects losses while `Model.loss` runs the model."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """A context in which losses are not recorded."""
    token = record.set(None)
    try:
        yield
    finally:
        record.reset(token)


class Judged:
    """A computed loss: its name, value, and metrics."""

    __slots__ = ("label", "metrics", "name", "prediction", "value")

    def __init__(self, name: str, value: Tensor, metrics: dict[str, float], prediction: Any, label: Any) -> None:
        self.name, self.value, self.metrics, self.prediction, self.label = name, value, metrics, prediction, label


class NoElements(ModelError):
    """A combinator got a value without elements; it tells that a module cannot be tried with plain tensors."""


class Eager:
    """The combinators on real tensors."""

    def each(self, function: Body, families: Sequence[Any]) -> Any:
        space = common_space(families)
        return _gathered(space, [function(*(_element(f, i) for f in families)) for i in range(len(space))])

    def fold(self, step: Body, family: Any, start: Any) -> Any:
        carry = start
        for i in range(len(common_space([family]))):
            carry = step(carry, _element(family, i))
        return carry

    def scan(self, step: Body, family: Any, start: Any) -> tuple[Any, Any]:
        space, carry, seen = common_space([family]), start, []
        for i in range(len(space)):
            carry = step(carry, _element(family, i))
            seen.append(carry)
        return _gathered(space, seen), carry

    def repeat(self, body: Body, start: Any, times: int | None, while_: Body | None) -> Any:
        carry, i = start, 0
        counted = not takes(body, 1)
        while i < times if times is not None else while_ is not None and while_(carry):
            carry = body(carry, i) if counted else body(carry)
            i += 1
        return carry

    def fold_tree(self, tree: Any, leaf: Body, branch: Body, children: int | str | None) -> tuple[Any, Any]:
        if not isinstance(tree, Tree):
            raise NoElements(f"fold_tree folds a Tree, got {type(tree).__name__}", here())
        if isinstance(children, int):
            tree._check_arity(children)
        made: list[Any] = [None] * len(tree)
        order, todo = [], [tree._root]
        while todo:  # parents before children; reversed, children come first
            order.append(todo.pop())
            todo += tree._children[order[-1]].tolist()
        for i in reversed(order):
            element = tree._element(i)
            if not tree._degree[i]:
                made[i] = leaf(element)
                continue
            below = [made[c] for c in tree._children[i].tolist()]
            if isinstance(children, str):
                below = [_gathered(Members(len(below)), below)]
            made[i] = branch(*below) if takes(branch, len(below)) else branch(*below, element)
        return _gathered(tree, made), made[tree._root]

    def messages(self, function: Body, edges: Any, values: Any, to: Any, reduction: str | Body) -> Any:
        if not isinstance(edges, Edges):
            raise ModelError(f"messages run along Edges, got {type(edges).__name__}", here())
        for family in (values, *([] if to is None else [to])):
            if common_space([family]) is not edges._nodes:
                raise ModelError(f"messages along {edges!r} start from values for each element of its nodes", here())
        arrived: list[list[Any]] = [[] for _ in range(len(edges._nodes))]
        at_target = values if to is None else to
        for e, (a, b) in enumerate(zip(edges._source.tolist(), edges._target.tolist(), strict=True)):
            ends = [_element(values, a)] + ([] if to is None else [_element(to, b)])
            arrived[b].append(along(function, ends, partial(edges._element, e)))
        results = [
            _arrived(some, reduction, _element(at_target, i)) if some else None for i, some in enumerate(arrived)
        ]
        blank = next((made for made in results if made is not None), None)
        if blank is None:
            ends = [_element(values, 0)] + ([] if to is None else [_element(to, 0)])
            with torch.no_grad(), unrecorded():
                blank = _arrived([along(function, ends, partial(zero_like, edges))], reduction, _element(at_target, 0))
        nothing = rebuild(blank, iter([torch.zeros_like(v.detach()) for v in leaves(blank)]))
        return _gathered(edges._nodes, [nothing if made is None else made for made in results])

    def choose(self, index: int, options: Sequence[Body], args: Sequence[Any]) -> Any:
        if not 0 <= int(index) < len(options):
            raise DataError(f"a choice of {int(index)} among {len(options)} options, numbered from 0")
        return options[int(index)](*args)

    def reduce(self, family: Any, reduction: str) -> Any:
        families = list(leaves(family))
        space = _filled(common_space(families))
        columns = [torch.stack([_element(one, i) for i in range(len(space))]) for one in families]
        return rebuild(family, iter([_reduced(rows, reduction) for rows in columns]))

    def loss(
        self,
        prediction: Any,
        label: Any,
        function: str | Body,
        name: str,
        metrics: Mapping[str, Body | Ratio] | None,
        weight: float,
        on_nan: str,
    ) -> Tensor | None:
        if isinstance(prediction, Family):
            if function != "selection":
                raise ModelError("a loss takes one value; for the choice among elements use 'selection'", here())
            space = _filled(common_space([prediction]))
            prediction = torch.stack([_element(prediction, i) for i in range(len(space))])
        noted = record.get()
        if label is None:
            if noted is not None:
                raise DataError(f"no label for the loss '{name}'; only predictions can do without")
            return None
        value = weight * _value(function, prediction, label)
        if noted is not None:
            noted.append(Judged(name, value, {}, prediction, label))
        return value


def _value(function: str | Body, prediction: Tensor, label: Tensor) -> Tensor:
    if function == "cross_entropy":
        return torch.nn.functional.cross_entropy(prediction.unsqueeze(0), label.reshape(1))
    if function == "selection":
        return torch.nn.functional.cross_entropy(prediction.reshape(1, -1), label.reshape(1))
    if function == "binary_cross_entropy":
        return torch.nn.functional.binary_cross_entropy_with_logits(prediction, label)
    if function == "squared_error":
        return ((prediction - label) ** 2).mean()
    if function == "absolute_error":
        return (prediction - label).abs().mean()
    assert not isinstance(function, str)
    rows: Tensor = function(prediction.unsqueeze(0), label.unsqueeze(0))
    return rows.sum()


def itself(rows: Tensor, _: Tensor) -> Tensor:
    """The loss function of values that are losses already."""
    return rows


def as_tensors(returned: Any) -> Any:
    """Convert families in what ``forward`` returned to tensors ``[elements, ...]``, families of families to lists of
    these, as `predict` returns them."""
    return rebuild(returned, iter([_as_tensor(leaf) for leaf in leaves(returned)]))


def _as_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, Many):
        return leaf
    values = [value for value in leaf.values if value is not None]
    if values and isinstance(values[0], Tensor):
        return torch.stack(values)
    return [_as_tensor(value) for value in values]


def common_space(families: Sequence[Any]) -> Space:
    """Returns the space that all of these families are over."""
    if not families:
        raise ModelError("there is nothing to go through: give a Seq, a Tree, Edges, or what was made of one", here())
    spaces = []
    for family in families:
        if isinstance(family, Nothing):
            family = Members(0)
        if not isinstance(family, Many | Space):
            raise NoElements(
                f"a Seq, Tree or Edges, or a value for each element of one, is wanted here; got "
                f"{type(family).__name__}",
                here(),
            )
        spaces.append(family if isinstance(family, Space) else family.space)
    for space in spaces:
        if space is not spaces[0]:
            raise ModelError(two_scopes(repr(spaces[0]), repr(space)), here())
    return spaces[0]


def _filled(space: Space) -> Space:
    if not len(space):
        raise DataError(f"{space!r} has no element, and the model puts all its elements together")
    return space


def two_scopes(a: str, b: str) -> str:
    return (
        f"values for each element of {a} and for each element of {b} meet, and nothing says which belongs to which. "
        f"If both are over the same elements, make them columns of one Seq: Seq(a=..., b=...). Else bring one of "
        f"them to the other's scope first: reduce(...), or messages(...) along edges"
    )


def _element(family: Any, i: int) -> Any:
    return family._element(i) if isinstance(family, Space) else family.values[i]


def _gathered(space: Space, made: list[Any]) -> Any:
    """Convert nests of values, one for each element, to a nest of families."""
    if not made or made[0] is None:
        return None if made else Many(space, [])
    columns = list(zip(*(list(leaves(m)) for m in made), strict=True))
    return rebuild(made[0], iter([Many(space, list(column)) for column in columns]))


def _arrived(made: list[Any], reduction: str | Body, target: Any) -> Any:
    """Reduce the messages at a node to one value."""
    if isinstance(reduction, str):
        return _together(made, reduction)
    family = _gathered(Members(len(made)), made)
    return reduction(family) if takes(reduction, 1) else reduction(family, target)


def _together(made: list[Any], reduction: str) -> Any:
    """Reduce nests of values to one nest."""
    columns = [torch.stack(column) for column in zip(*(list(leaves(m)) for m in made), strict=True)]
    return rebuild(made[0], iter([_reduced(rows, reduction) for rows in columns]))


def _reduced(rows: Tensor, reduction: str) -> Tensor:
    if reduction == "max":
        return rows.max(0).values
    if reduction == "logsumexp":
        return rows.logsumexp(0)
    return rows.sum(0) if reduction == "sum" else rows.mean(0)
