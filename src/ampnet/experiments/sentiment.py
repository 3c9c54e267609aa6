"""Sentiment and the binary Tree-LSTM: five classes at every node of a tree, 300-d word vectors; to 82 % of all nodes.

An update of a node follows on 50 gradients (about two trees), of the embedding on 1,000, with 16 trees in flight: the
paper's numbers. Adagrad, its rate and dropout are those of Tai et al. 2015, which the paper follows.

The embedding begins with word vectors. The paper's are GloVe's, which take a download of 0.8 GB; without them the
vectors are learned from random ones, and the accuracy is a little lower. A run says which it has.

The vocabulary has one word more than the treebank: all words that a model is asked about and does not know. Its vector
is zero and stays so, for no tree of the training data has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ampnet.data import Dataset, load, sst
from ampnet.data.word_vectors import WordVectors, here
from ampnet.errors import DataError
from ampnet.experiments.brackets import Written, parse, parted
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import SentimentSettings as Settings
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Workload, best, limited
from ampnet.lang import Compiled, Model, Tree
from ampnet.models import TreeLstm

CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
VECTORS: dict[str, tuple[str, int] | None] = {
    "glove300": ("glove", 300),
    "wordvec300": ("wordvec300", 300),
    "glove50": ("glove", 50),
    "random": None,
}
"""Initial values of the embedding: a data set and its vector size; None: random vectors of size 300."""
NO_VECTORS = (
    "word vectors: none on this machine, so they are learned from random ones; expect an accuracy near 0.815 after 5 "
    "epochs. 'ampnet data get glove' fetches the paper's (0.8 GB), for 0.82"
)


class Sentiment(Workload[Settings]):
    """See the head of this file."""

    fact_types: ClassVar[Mapping[str, Any]] = {"vocabulary": list[str], "width": int}

    def load(self, settings: Settings, data_dir: Path | None = None) -> sst.Treebank:
        data = load("sst", data_dir)
        assert isinstance(data, sst.Treebank)
        return limited(data, settings)

    def resolve(self, settings: Settings, data_dir: Path | None = None) -> tuple[Settings, str]:
        """Decides ``vectors="auto"``: the best on this machine."""
        if settings.vectors != "auto":
            return settings, ""
        if (path := here("glove", 300, data_dir)) is not None:
            return replace(settings, vectors="glove300"), f"word vectors: glove300 ({path})"
        if (path := here("wordvec300", 300, data_dir)) is not None:
            return replace(settings, vectors="wordvec300"), f"word vectors: wordvec300 ({path})"
        return replace(settings, vectors="random"), NO_VECTORS

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
        source = VECTORS[self.resolve(settings, data_dir)[0].vectors]
        if source is None:
            return
        name, dim = source
        try:
            vectors = load(name, data_dir, dim=dim)
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


def _answer(written: Written, unknown: Sequence[str], prediction: Tensor) -> Answer:
    at = [best(row) for row in prediction]
    width = max(map(len, CLASSES))
    root = len(written.parents) - 1
    lines = []
    nodes = []
    for node in sorted(range(len(at)), key=lambda node: (written.spans[node][0], -written.spans[node][1])):
        number, probabilities = at[node]
        shares = " ".join(f"{p:.2f}" for p in probabilities)
        lines.append(f"{CLASSES[number]:{width}}  {shares}  {'  ' * written.depths[node]}{written.phrase(node)}")
        nodes.append({"phrase": written.phrase(node), "class": number, "probabilities": probabilities})
    if unknown:
        lines.append(f"not known to the model: {', '.join(unknown)}")
    data = {"input": written.phrase(root), "class": at[root][0], "unknown": list(unknown), "nodes": nodes}
    return Answer("\n".join(lines), data)


WORKLOAD = Sentiment.of(DESCRIBED["sentiment"])
