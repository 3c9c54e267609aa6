"""The combinators: control flow and structure in a model that is written for one instance.

    each(f, family)                   apply a function to every element
    fold(f, sequence, start)          a loop over a sequence: the last result
    scan(f, sequence, start)          the same: every step's result, and the last
    repeat(f, start, times=n)         a loop of n rounds, fixed or given by the instance
    repeat(f, start, while_=going)    a loop while a condition on integers holds
    fold_tree(tree, leaf, branch)     a tree from the leaves up: every node's result, and the root's
    messages(f, edges, family)        message passing along the edges of a graph, reduced at their targets
    choose(index, options, *args)     one of several functions or modules
    reduce(family, "sum")             reduce all elements to one value: sum, mean, max, logsumexp
    softmax(scores), attention(query, keys, values)        over a family (`ampnet.lang.attend`)
    self_attention(q, k, v), whole(module, xs)             of whole sequences (`ampnet.lang.whole`)
    family[i]                         one element, by an integer of the instance
    loss(prediction, label)           a training loss: anywhere, any number of times

Everything else (concatenation, slices, arithmetic) is plain torch. A value may be used any number of times, also inside
a combinator's function: there it is the same for every element and round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ampnet.errors import ModelError
from ampnet.lang.eager import Eager, itself
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.nest import takes
from ampnet.lang.trace import current
from ampnet.lang.traced import Traced
from ampnet.nodes.metrics import Ratio

Function = Callable[..., Any]
Reduction = Literal["sum", "mean", "max", "logsumexp"]
_REDUCTIONS = ("sum", "mean", "max", "logsumexp")
_LOSSES = ("cross_entropy", "binary_cross_entropy", "squared_error", "absolute_error", "selection")
_ELSEWHERE = {
    **dict.fromkeys(("mse", "mse_loss", "l2"), "squared_error"),
    **dict.fromkeys(("mae", "l1", "l1_loss"), "absolute_error"),
    **dict.fromkeys(("bce", "bce_with_logits", "binary_cross_entropy_with_logits"), "binary_cross_entropy"),
    **dict.fromkeys(("ce", "nll", "nll_loss", "crossentropy"), "cross_entropy"),
}
"""Names that other libraries have for these losses."""
_EAGER = Eager()
_ITSELF: Any = object()
"""In place of a label: the prediction is the loss."""


def _runs() -> Eager | Traced:
    trace = current.get()
    return _EAGER if trace is None else Traced(trace)


def each(function: Function, *families: Any) -> Any:
    """Apply a function to every element of a `Seq`, `Tree` or `Edges`, or of families over one. Returns a family.

    ::

        h = each(lambda atom: self.embed(atom.kind), atoms)
        y = each(lambda h, x: self.out(torch.cat((h, x), -1)), h, atoms.x)
        v = each(lambda sentence: fold(self.read, sentence.words, self.zeros(64)), document)   # words: sequences

    The function may itself call combinators, on another space or on a column that has a sequence for each element. If
    it returns a family, the result is a family of families.
    """
    return _runs().each(function, families)


def fold(step: Function, family: Any, start: Any) -> Any:
    """``carry = step(carry, element)`` for every element in order; returns the last carry.

    ::

        h = fold(lambda h, token: self.cell(self.embed(token), h), tokens, self.zeros(128))

    The carry may be a tuple; it keeps its shape and dtype from round to round.
    """
    return _runs().fold(step, family, start)


def scan(step: Function, family: Any, start: Any) -> tuple[Any, Any]:
    """The same loop as `fold`; returns the family of all carries, and the last carry::

    states, last = scan(lambda h, x: self.cell(x, h), inputs, self.zeros(128))
    """
    return _runs().scan(step, family, start)


def repeat(body: Function, start: Any, times: Int | int | None = None, *, while_: Function | None = None) -> Any:
    """``carry = body(carry)``, a number of times or while a condition holds; returns the last carry.

    ::

        h = repeat(lambda h: torch.tanh(self.layer(h)), x, times=4)
        h = repeat(lambda h: torch.tanh(self.layer(h)), x, times=steps)         # an integer of the instance
        h = repeat(lambda h, i: choose(order[i], self.layers, h), x, times=8)   # i: the number of the round, from 0
        h, n = repeat(lambda s: (self.layer(s[0]), s[1] // 2), (x, n), while_=lambda s: s[1] > 1)

    The condition may read integers only: those of the instance, and those that the loop carries. With zero rounds the
    result is ``start``.
    """
    if (times is None) == (while_ is None):
        raise ModelError("repeat needs either times=... or while_=...", here())
    if while_ is not None and not takes(while_, 1):
        raise ModelError("while_ takes the carry as one argument, as the body does: while_=lambda s: s[1] > 1", here())
    return _runs().repeat(body, start, times, while_)  # type: ignore[arg-type]


def fold_tree(
    tree: Any, leaf: Function, branch: Function, *, children: int | Literal["family"] | None = None
) -> tuple[Any, Any]:
    """Fold a `Tree` from the leaves up. Returns the family of results at every node, and the result at the root.

    ::

        states, root = fold_tree(
            tree,
            leaf=lambda node: self.leaf(self.embed(node.word)),
            branch=lambda left, right: self.branch(torch.cat((left, right), -1)),
        )

    ``branch`` gets one result for each child, so all inner nodes have the same number of children: that of the example,
    or ``children``. If it takes one argument more, that is the node itself. With ``children="family"``, nodes may have
    any number of children, and ``branch`` gets their results as a family, in order::

        branch=lambda hs, node: self.join(reduce(hs, "sum") + self.embed(node.kind))     # or "max", "mean"
        branch=lambda hs, node: attention(self.ask(node.x), hs, hs)
        branch=lambda hs, node: fold(lambda h, child: self.cell(child, h), hs, self.zeros(64))
    """
    if not (children is None or children == "family" or (type(children) is int and children > 0)):
        raise ModelError(f"children of fold_tree is a number from 1 up or 'family'; got {children!r}", here())
    return _runs().fold_tree(tree, leaf, branch, children)


def messages(
    function: Function, edges: Any, values: Any, *, to: Any = None, reduction: Reduction | Function = "sum"
) -> Any:
    """Send a message along every edge, and reduce the messages at each node. Returns a family over the nodes.

    ::

        m = messages(lambda h, bond: choose(bond.kind, self.linears, h), bonds, h)

    ``function`` gets the value at the edge's source, the one at its target if ``to`` is given, and the edge if it takes
    one argument more. A node without incoming edges gets zeros.

    ``reduction`` may be a function of the family of messages that arrive at a node (of families, where a message is a
    tuple); if it takes two arguments, the second is the value of ``to`` at that node::

        heads = messages(
            lambda h: (self.key(h), self.value(h)), edges, h, to=query, reduction=lambda m, q: attention(q, *m)
        )
    """
    if isinstance(reduction, str):
        _check(reduction)
    return _runs().messages(function, edges, values, to, reduction)


def choose(index: Int | int, options: Iterable[Function], *args: Any) -> Any:
    """Returns ``options[index](*args)``. Options are modules or functions; the index is an integer of the instance::

    h = choose(expert, self.experts, h)
    """
    options = list(options)
    if not options:
        raise ModelError("choose needs at least one option", here())
    return _runs().choose(index, options, args)  # type: ignore[arg-type]


def reduce(family: Any, reduction: Reduction = "sum") -> Any:
    """Reduce all elements of a family to one value; a tuple of families to a tuple of values.

    ::

        molecule = reduce(each(self.gate, h), "sum")
    """
    _check(reduction)
    return _runs().reduce(family, reduction)


def loss(
    prediction: Any,
    label: Any = _ITSELF,
    function: Literal["cross_entropy", "binary_cross_entropy", "squared_error", "absolute_error", "selection"]
    | Function = "cross_entropy",
    *,
    name: str = "loss",
    metrics: Mapping[str, Function | Ratio] | None = None,
    weight: float = 1.0,
    on_nan: Literal["stop", "skip"] = "stop",
) -> Tensor | None:
    """Add a loss for training to minimise. May be called at any scope: inside `each` it is a loss for every element.

    ::

        loss(self.classify(h), label)                                        # a row of scores, an int64 number
        loss(self.out(h), target, "squared_error")                           # two rows; or "absolute_error"
        loss(self.score(h), target, "binary_cross_entropy")                  # logits, and numbers from 0 to 1
        loss(each(self.score, h), answer, "selection")                       # which of the elements
        loss(kl, name="kl", weight=0.1)                                      # one number, which is the loss itself
        each(lambda h, y: loss(self.out(h), y), states, tree.label)          # at every node of a tree

    ``function`` may be any differentiable function of (prediction rows, label rows) that returns a number per row.
    ``metrics`` maps names to such functions, or to `Ratio` objects; they are reported besides accuracy or absolute
    error. Statistics are kept by ``name``: ``stats.losses["mood"]``, ``stats.metrics["mood.f1"]``. Losses of the same
    name are reported as one.

    Training minimises the sum of all losses of an instance, each multiplied by its ``weight``. Returns the loss when
    run eagerly, and None when compiled.
    """
    _check_loss_name(name, metrics)
    if isinstance(function, str) and function not in _LOSSES:
        known = _ELSEWHERE.get(function.lower())
        hint = f"; did you mean '{known}'?" if known is not None else ""
        raise ModelError(f"a loss is one of {', '.join(_LOSSES)}, or a function; got {function!r}{hint}", here())
    if label is _ITSELF:
        if function != "cross_entropy":
            raise ModelError(f"a loss of {function!r} needs a label; loss(value) minimises the value itself", here())
        if prediction.ndim:
            raise ModelError(
                f"loss(value) without a label minimises one number, got a tensor of shape {tuple(prediction.shape)}: "
                f"add its numbers up (.sum()), or give a label",
                here(),
            )
        label, function = torch.zeros(()), itself
    return _runs().loss(prediction, label, function, name, metrics, weight, on_nan)


def _check_loss_name(name: str, metrics: Mapping[str, Any] | None) -> None:
    if not name or "." in name:
        raise ModelError(f"the name of a loss is a word without a dot, like 'mood'; got {name!r}", here())
    for metric, function in (metrics or {}).items():
        if metric == "loss" or not (callable(function) or isinstance(function, Ratio)):
            raise ModelError(
                f"metric {metric!r} of loss '{name}' is {'the loss itself' if metric == 'loss' else repr(function)}; "
                f"metrics are functions of (prediction rows, label rows), or Ratio, under other names",
                here(),
            )


def _check(reduction: str | None) -> None:
    if reduction is not None and reduction not in _REDUCTIONS:
        raise ModelError(f"a reduction is one of {', '.join(_REDUCTIONS)}; got {reduction!r}", here())
