"""Sentiment and the binary Tree-LSTM: five classes at every node of a tree, 300-d word vectors; to 82 % of all nodes.

An update of a node follows on 50 gradients (about two trees), of the embedding on 1,000, with 16 trees in flight: the
paper's numbers. Its vectors are GloVe's; the default here is ``wordvec300``, for which nothing of 0.8 GB is fetched.
Adagrad, its rate and dropout are those of Tai et al. 2015, which the paper follows.

The vocabulary has one word more than the treebank: all words that a model is asked about and does not know. Its vector
is zero and stays so, for no tree of the training data has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ampnet.data import Dataset, load, sst
from ampnet.data.word_vectors import WordVectors
from ampnet.errors import DataError
from ampnet.experiments.brackets import Written, parse, parted
from ampnet.experiments.settings import Optimizer, Training
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Result, Workload, best, limited
from ampnet.lang import Compiled, Model, Tree
from ampnet.models import TreeLstm

CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
VECTORS: dict[str, tuple[str, dict[str, int]] | None] = {
    "wordvec300": ("wordvec300", {}),
    "glove300": ("glove", {"dim": 300}),
    "glove50": ("glove", {"dim": 50}),
    "random": None,
}
"""What the embedding may begin with: a data set and its options; None: random numbers, 300 a word."""


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """The paper's, and of what it does not name those of Tai et al. 2015."""

    epochs: int = 10
    count: Literal["messages", "instances"] = "messages"
    update_after: Mapping[str, int] = field(default_factory=lambda: {"embedding": 1000})
    learning_rate: float = 0.05
    rate_of: Mapping[str, float] = field(default_factory=lambda: {"embedding": 0.005})
    optimizer: Optimizer = "adagrad"
    dropout: float = 0.5
    """Share of a node's state that its classifier does not see."""
    hidden: int = 300
    """Width of a node's state."""
    vectors: str = "wordvec300"
    """What the embedding begins with."""

    def in_flight(self) -> int:
        return 16

    def frequency(self) -> int:
        return 50


class Sentiment(Workload[Settings]):
    """See the head of this file."""

    def load(self, settings: Settings, data_dir: Path | None = None) -> sst.Treebank:
        data = load("sst", data_dir)
        assert isinstance(data, sst.Treebank)
        return limited(data, settings)

    def facts(self, settings: Settings, data: Dataset[Any]) -> dict[str, Any]:
        assert isinstance(data, sst.Treebank)
        return {"vocabulary": list(data.vocabulary), "width": 50 if settings.vectors == "glove50" else 300}

    def check(self, data: Dataset[Any], facts: Facts) -> None:
        assert isinstance(data, sst.Treebank)
        if list(data.vocabulary) != facts["vocabulary"]:
            raise DataError(
                f"the treebank has {len(data.vocabulary):,} words, and they are not the {len(facts['vocabulary']):,} "
                f"that the model was trained with: it was another edition"
            )

    def arguments(self, settings: Settings, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        return sst.arguments

    def model(self, settings: Settings, facts: Facts) -> Model:
        words = len(facts["vocabulary"])
        model = TreeLstm(words + 1, facts["width"], settings.hidden, len(CLASSES), settings.dropout)
        model.embedding.weight.detach()[words] = 0
        return model

    def example(self, settings: Settings) -> tuple[Any, ...]:
        return (
            Tree(
                [2, 2, -1], leaves={"word": torch.zeros(2, dtype=torch.int64)}, label=torch.zeros(3, dtype=torch.int64)
            ),
        )

    def begin(self, graph: Compiled, settings: Settings, data: Dataset[Any], data_dir: Path | None = None) -> None:
        source = VECTORS[settings.vectors]
        if source is None:
            return
        name, options = source
        try:
            vectors = load(name, data_dir, **options)
        except DataError as error:
            others = ", ".join(v for v in VECTORS if v != settings.vectors)
            raise DataError(f"{error}. Or begin with other vectors: --vectors takes {others}") from error
        assert isinstance(vectors, WordVectors)
        assert isinstance(data, sst.Treebank)
        assert isinstance(graph.model, TreeLstm)
        table = vectors.rows(data.vocabulary, settings.seed)
        graph.model.embedding.weight.detach()[: len(table)] = torch.from_numpy(table)

    def ask(self, inputs: Sequence[str], settings: Settings, facts: Facts, asking: Asking) -> list[Question]:
        numbers = {word: i for i, word in enumerate(facts["vocabulary"])}
        return [_question(text, numbers) for text in inputs]

    def parted(self, text: str) -> list[str]:
        """A tree may have several lines."""
        return parted(text)


def _question(text: str, numbers: Mapping[str, int]) -> Question:
    written = parse(text)
    words = [_number(word, numbers) for word in written.words]
    unknown = [word for word, i in zip(written.words, words, strict=True) if i == len(numbers)]
    tree = Tree(np.array(written.parents), leaves={"word": torch.tensor(words)})
    return Question((tree,), partial(_answer, written, unknown))


def _number(word: str, numbers: Mapping[str, int]) -> int:
    """As it is written, or else with another first letter; the last number is that of all words not known."""
    known = (w for w in (word, word.lower(), word.capitalize()) if w in numbers)
    return numbers[w] if (w := next(known, None)) is not None else len(numbers)


def _answer(written: Written, unknown: Sequence[str], results: Sequence[Result]) -> Answer:
    at = {state["tree"]: best(rows[0]) for _, state, rows in results}
    width = max(map(len, CLASSES))
    root = len(written.parents) - 1
    lines = []
    nodes = []
    for node in sorted(at, key=lambda node: (written.spans[node][0], -written.spans[node][1])):
        number, probabilities = at[node]
        shares = " ".join(f"{p:.2f}" for p in probabilities)
        lines.append(f"{CLASSES[number]:{width}}  {shares}  {'  ' * written.depths[node]}{written.phrase(node)}")
        nodes.append({"phrase": written.phrase(node), "class": number, "probabilities": probabilities})
    if unknown:
        lines.append(f"not known to the model: {', '.join(unknown)}")
    data = {"input": written.phrase(root), "class": at[root][0], "unknown": list(unknown), "nodes": nodes}
    return Answer("\n".join(lines), data)


WORKLOAD = Sentiment(
    Settings,
    "sentiment",
    "the binary Tree-LSTM on the Stanford Sentiment Treebank",
    "trees",
    paper_target=0.82,
    input="sentences with their trees, like '(It (is great))' or '(3 (2 It) (4 (2 is) (4 great)))'",
    nodes="leaf_cell,branch_cell",
)
