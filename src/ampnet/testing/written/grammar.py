"""Grammar: random programs, from whatever draws the numbers.

`Writer` is given a function ``number(low, high)``, both ends included: Hypothesis's, or that of a seeded generator. So
both draw the same blocks, about equally often. The first of several options is a simple one, for Hypothesis shrinks
towards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from ampnet.testing.written.cells import CELLS
from ampnet.testing.written.children import READS
from ampnet.testing.written.instances import LEAST, MOST, OPTIONS, WIDTH, Sizes, instance
from ampnet.testing.written.model import LOSSES, SOURCES, USES, Block, Program
from ampnet.testing.written.rows import ROWS
from ampnet.testing.written.sequences import GATHERED, MODULES, REDUCTIONS

Number = Callable[[int, int], int]
T = TypeVar("T")

BLOCKS: dict[str, tuple[str, ...]] = {
    "loss": ("kind", "weight"),
    "select": (),
    "judge": ("index", "kinds"),
    "residual": ("program",),
    "gate": ("program",),
    "option": ("index",),
    "choose": ("index", "programs"),
    "pair": ("index", "programs"),
    "repeat": ("count", "cell", "program"),
    "while": ("program",),
    "fold": ("space_or_bonds", "cell", "program"),
    "scan": ("space", "cell", "program", "program", "how"),
    "stack": ("space", "cell", "cell", "how"),
    "each": ("space_or_bonds", "program", "how"),
    "column": ("space", "how"),
    "attend": ("space", "softmax"),
    "tree": ("reads", "source", "program", "program", "use"),
    "bush": ("cell", "program", "program", "gathered", "use"),
    "graph": ("program", "cell", "program", "rounds", "gathered"),
    "nested": ("cell", "program", "how"),
    "index": ("space", "index", "program"),
    "lookup": ("space", "space", "program", "how"),
    "spell": ("index", "how"),
    "look": ("space", "heads"),
    "mix": ("space", "causal", "program", "how"),
    "whole": ("space", "module", "program", "how"),
}
"""The blocks that are tuples: what follows the name, each drawn by the method of `Writer` of that name."""

OPTIONS_OF: dict[str, tuple[Any, ...]] = {
    "kind": LOSSES,
    "weight": (1.0, 0.5, 2.0),
    "cell": tuple(CELLS),
    "reads": tuple(READS),
    "source": SOURCES,
    "use": USES,
    "space": ("tokens", "words", "tree", "bush", "letters"),
    "space_or_bonds": ("tokens", "words", "tree", "bush", "letters", "bonds"),
    "how": REDUCTIONS,
    "gathered": GATHERED,
    "heads": (1, WIDTH),
    "causal": (False, True),
    "module": tuple(MODULES),
    "softmax": ("sum", "max", "logsumexp"),
}
"""Settings that are one of several."""

_NESTED = tuple(name for name in BLOCKS if name != "loss")
_DRAWN = (*_NESTED, *("tree",) * 4, "bush", "scan", "fold", "repeat", "attend", "whole", "whole", "nested")
"""The blocks to draw from: some occur more often, because they have more settings."""


class Writer:
    """Writes one program. ``nested``: how many blocks may hold something; ``deepest``: how deep they may be nested."""

    def __init__(self, number: Number, nested: int, deepest: int) -> None:
        self.number, self.left, self.deepest, self.depth = number, nested, deepest, 0

    def program(self, most: int = 2) -> Program:
        self.depth += 1
        made = [self._block() for _ in range(self.number(1, most))]
        self.depth -= 1
        return made

    def _block(self) -> Block:
        plain = 1 if self.depth == 1 else 2  # two of three are nested at first, one of three inside of others
        if self.left > 0 and self.depth <= self.deepest and self.number(0, 2) >= plain:
            self.left -= 1
            return self._tuple(self._pick(_DRAWN))
        return self._tuple("loss") if self.number(0, 5) == 5 else self._pick(tuple(ROWS))

    def _tuple(self, name: str) -> Block:
        return (name, *(self._setting(what) for what in BLOCKS[name]))

    def _setting(self, what: str) -> Any:
        return self._pick(OPTIONS_OF[what]) if what in OPTIONS_OF else getattr(self, what)()

    def _pick(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    def programs(self) -> list[Program]:
        return [self.program() for _ in range(self.number(2, OPTIONS))]

    def kinds(self) -> list[str]:
        return [self._pick((*LOSSES, "none")) for _ in range(self.number(2, OPTIONS))]

    def index(self) -> int:
        return self.number(0, 5)

    def count(self) -> int:
        """Less than 0: a fixed number of rounds."""
        return self.number(-3, 5)

    def rounds(self) -> int:
        return self.number(1, 2)


def sizes(number: Number) -> Sizes:
    """Of one instance."""
    return Sizes(**{f.name: number(getattr(LEAST, f.name), getattr(MOST, f.name)) for f in fields(Sizes)})


def seeded(seed: int) -> tuple[Program, list[tuple[Any, ...]]]:
    """A random program and 1 to 6 instances: the arguments of `WrittenModel`. The same for the same seed."""
    rng = np.random.default_rng(seed)

    def number(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    program = Writer(number, nested=3, deepest=2).program(3)
    return program, [instance(rng, sizes(number)) for _ in range(number(1, 6))]


def settings_in(program: Program) -> Iterator[tuple[str, Any]]:
    """Everything that was drawn: ("block", "fold"), ("cell", "gru"), ... Tells what random programs are made of."""
    for block in program:
        if isinstance(block, str):
            yield "row", block
            continue
        yield "block", block[0]
        for what, value in zip(BLOCKS[block[0]], block[1:], strict=True):
            if what == "program":
                yield from settings_in(value)
            elif what == "programs":
                for inner in value:
                    yield from settings_in(inner)
            elif what in OPTIONS_OF:
                yield what, value
