"""Sequences: the blocks of whole sequences: nested ones, elements by index, attention, modules taken whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampnet.lang import attention, each, fold, reduce, self_attention, softmax, whole
from ampnet.testing.written.cells import CELLS
from ampnet.testing.written.instances import WIDTH
from ampnet.testing.written.layers import Layers
from ampnet.testing.written.rows import Around

REDUCTIONS = ("sum", "mean", "max", "logsumexp")


def _last(m: Layers, made: Any) -> Any:
    states, last = made
    last = last[0] if isinstance(last, tuple) else last
    return each(lambda s: m.join(torch.cat((s[:WIDTH], s[-WIDTH:]), -1)), states), last.sum(0)


MODULES: dict[str, Callable[[Layers, Any], tuple[Any, Any]]] = {
    "gru": lambda m, xs: _last(m, m.gru(xs)),
    "lstm": lambda m, xs: _last(m, m.both_ways(xs)),
    "encoder": lambda m, xs: (m.encoder(xs), 0),
    "causal": lambda m, xs: (m.encoder(xs, is_causal=True), 0),
    "heads": lambda m, xs: (m.heads(xs, xs, xs)[0], 0),
    "rows": lambda m, xs: (whole(m.own, xs), 0),
    "reader": lambda m, xs: m.reader(xs),
}
"""By name: a module of sequences, as a function of a family. Gives a family and one value."""

GATHERED = (*REDUCTIONS, "softmax", "attention", "fold", "last")
"""How families of children and messages become one value."""


def gathered(m: Layers, family: Any, how: str, query: Any) -> Any:
    """One value of a family, or of each of several families."""
    if isinstance(family, tuple):
        return tuple(gathered(m, one, how, query) for one in family)
    if how == "softmax":
        return reduce(each(lambda weight, x: weight * x, softmax(family), family), "sum")
    if how == "attention":
        return attention(query, family, family)
    if how == "fold":
        return fold(lambda a, x: torch.tanh(m.other(a) + x), family, m.begin)
    return family[-1] if how == "last" else reduce(family, how)  # type: ignore[arg-type]


class SequenceBlocks(Layers):
    """The blocks, by name. `ampnet.testing.written.model` runs the programs inside of them."""

    run: Callable[..., Any]
    runs: Callable[..., Any]
    _int: Callable[..., Any]

    def skips(self, around: Around, space: str) -> bool:
        """Whether a space is in use already, or does not exist here: letters are those of a word."""
        return space in around.spaces or space not in around.at

    def _family(self, h: Any, around: Around, space: str, program: Any) -> Any:
        return each(lambda e: self.run(program, h * e.x, around.inside(space, e)), around.at[space])

    def do_nested(self, h: Any, around: Around, kind: str, program: Any, how: Any) -> Any:
        """For every word, over its letters."""
        if "words" in around.spaces:
            return h
        cell = CELLS[kind]

        def spelt(word: Any) -> Any:
            inside = around.inside("words", word)

            def step(carry: Any, letter: Any) -> Any:
                return cell.step(self, carry, letter.x, self.runs(program, inside.inside("letters", letter)))

            return cell.out(fold(step, word.letters, cell.start(self, h * word.x)))

        return reduce(each(spelt, around.at["words"]), how)

    def do_index(self, h: Any, around: Around, space: str, index: int, program: Any) -> Any:
        """One element of a family, and the last of a column."""
        if self.skips(around, space):
            return h
        elements = around.at[space]
        chosen = self._family(h, around, space, program)[self._int(around, index) % elements.length]
        return chosen + elements.x[-1] * h

    def do_lookup(self, h: Any, around: Around, space: str, by: str, program: Any, how: Any) -> Any:
        """For every element of a space, an element of another, by an integer that it has."""
        if space == by or self.skips(around, space) or self.skips(around, by):
            return h
        family, elements = self._family(h, around, space, program), around.at[space]
        return reduce(each(lambda e: family[e.kind % elements.length] * e.x, around.at[by]), how)

    def do_spell(self, h: Any, around: Around, index: int, how: Any) -> Any:
        """A letter of every word, by its index."""
        if "words" in around.spaces:
            return h
        at = self._int(around, index)
        return reduce(each(lambda w: w.letters.x[at % w.letters.length] * h + w.letters[-1].x, around.at["words"]), how)

    def do_look(self, h: Any, around: Around, space: str, heads: int) -> Any:
        if self.skips(around, space):
            return h
        elements = around.at[space]
        keys, values = each(lambda e: self.key(e.x), elements), each(lambda e: self.other(e.x), elements)
        return h + attention(self.query(h), keys, values, heads=heads)

    def do_mix(self, h: Any, around: Around, space: str, causal: bool, program: Any, how: Any) -> Any:
        if self.skips(around, space):
            return h
        xs = self._family(h, around, space, program)
        made = self_attention(each(self.query, xs), each(self.key, xs), xs, causal=causal)
        return reduce(made, how)

    def do_whole(self, h: Any, around: Around, space: str, module: str, program: Any, how: Any) -> Any:
        if self.skips(around, space):
            return h
        states, last = MODULES[module](self, self._family(h, around, space, program))
        return torch.tanh(reduce(states, how) + last)
