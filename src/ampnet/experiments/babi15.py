"""bAbI 15 in the paper's size and the gated graph network: hidden 5, two steps, 54 nodes; to 100 %.

A hundred fresh graphs are an epoch, and 1,000 fixed ones validate it; 16 are in flight, as in the paper. The optimizer
and the size of an update are ours: the paper names neither.

A model is asked in English. How many nodes a story has does not matter to it:

    Mice are afraid of wolves. Gertrude is a mouse. What is Gertrude afraid of?
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.data import Dataset, babi15
from ampnet.data.babi15 import IS, Deduction
from ampnet.data.babi15_text import ASKED, fact
from ampnet.errors import DataError
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import Babi15Settings as Settings
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Workload
from ampnet.lang import Model
from ampnet.models import Babi15

SENTENCE = re.compile(r"[^.?\n]+[.?]?")
NUMBER = re.compile(r"\s*\d+\s+")
"""At the start of a line of the original texts."""


class Deducing(Workload[Settings]):
    """See the head of this file."""

    def load(self, settings: Settings, data_dir: Path | None = None) -> Dataset[Any]:
        train, valid = settings.limited(settings.train_size), settings.limited(settings.valid_size)
        return babi15.read(None, settings.seed, train, valid, settings.size)

    def arguments(self, settings: Settings, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        return partial(babi15.arguments, hidden=settings.hidden)

    def model(self, settings: Settings, facts: Facts) -> Model:
        return Babi15(settings.hidden, settings.steps, babi15.KINDS)

    def example(self, settings: Settings) -> tuple[Any, ...]:
        return babi15.arguments(babi15.drawn(np.random.default_rng(0), 8), settings.hidden)

    def ask(self, inputs: Sequence[str], settings: Settings, facts: Facts, asking: Asking) -> list[Question]:
        return [
            Question((*babi15.arguments(told, settings.hidden)[:2], None), partial(_answer, question, names))
            for told, question, names in _stories("\n".join(inputs))
        ]

    def parted(self, text: str) -> list[str]:
        """The whole text as one input: a story."""
        return [text]


def _stories(text: str) -> list[tuple[Deduction, str, list[str]]]:
    """For each question: the facts before it, the question, and the names of the nodes."""
    facts: list[tuple[str, int, str]] = []
    out = []
    for number, line in enumerate(text.splitlines(), start=1):
        told = line.partition("\t")[0]  # behind a tab, the original texts have the answer
        for found in SENTENCE.finditer(NUMBER.sub("", told)):
            sentence = " ".join(found[0].split())
            if not sentence:
                continue
            try:
                if (asked := ASKED.fullmatch(sentence)) is None:
                    facts.append(fact(sentence))
                else:
                    out.append((*_graph(facts, asked[1].lower()), sentence))
            except ValueError as error:
                raise DataError(f"line {number}: {error}, nor 'What is X afraid of?'") from error
            except KeyError as error:
                raise DataError(
                    f"line {number}: {sentence!r}: nothing is told about {error.args[0]!r} before"
                ) from error
    if not out:
        raise DataError("there is no question in it; ask like 'What is Gertrude afraid of?', after the facts")
    return [(told, sentence, names) for told, names, sentence in out]


def _graph(facts: Sequence[tuple[str, int, str]], asked: str) -> tuple[Deduction, list[str]]:
    """The facts as a graph. A plural that is not in the data is matched with a singular of the facts."""
    single = {b for _, kind, b in facts if kind == IS}
    numbers: dict[str, int] = {}

    def node(name: str) -> int:
        name = name[:-1] if name not in single and name[:-1] in single and name.endswith("s") else name
        return numbers.setdefault(name, len(numbers))

    table = np.array([(node(a), kind, node(b)) for a, kind, b in facts], dtype=np.int64).reshape(-1, 3)
    return Deduction(len(numbers), table, numbers[asked], 0), list(numbers)


def _answer(question: str, names: Sequence[str], prediction: Tensor) -> Answer:
    shares = torch.softmax(prediction.reshape(-1).to(torch.float64), 0).tolist()
    order = sorted(range(len(names)), key=lambda i: -shares[i])
    then = f"; then {names[order[1]]}, {shares[order[1]]:.1%}" if len(order) > 1 else ""
    data = {"input": question, "answer": names[order[0]], "probabilities": dict(zip(names, shares, strict=True))}
    return Answer(f"{question} {names[order[0]]}  ({shares[order[0]]:.1%}{then})", data)


WORKLOAD = Deducing.of(DESCRIBED["babi15"])
