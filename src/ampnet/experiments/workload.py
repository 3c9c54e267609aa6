"""A workload: a data set, a model, the paper's settings and target, and what its input looks like to people.

One description for all commands:

    train        load ──> facts ──> build ──> begin ──> instances of every epoch
    evaluate     a saved model: settings, facts ──> build;  load ──> instances of a split
    predict      a saved model: settings, facts ──> build;  ask: text ──> questions ──> answers

**Facts** are what a model must know of the data it was made for: the words of a vocabulary, the mean of a target. They
are plain data and are saved with the model, so that it can be made again, and asked, where the data are not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from ampnet.data import Dataset, Split
from ampnet.errors import DataError
from ampnet.experiments.described import Description
from ampnet.experiments.settings import Training
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model, compile

S = TypeVar("S", bound=Training)
D = TypeVar("D", bound=Dataset[Any])

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model."""

    text: str
    """As text; may have several lines."""
    data: Mapping[str, Any]
    """As plain data, for JSON."""


@dataclass(frozen=True, slots=True)
class Question:
    """One input of ``ampnet predict``."""

    arguments: tuple[Any, ...]
    """The arguments of the model. Labels are None."""
    answer: Callable[[Tensor], Answer]
    """Makes the answer from the model's results."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How input is read: options of ``ampnet predict``."""

    invert: bool | None = None
    """Whether images are inverted; None: if their border is light."""


class Workload(Description[S], ABC):
    """Base of the workloads. See the head of this file."""

    @classmethod
    def of(cls, description: Description[Any]) -> Self:
        """The workload that is described."""
        return cls(**{item.name: getattr(description, item.name) for item in fields(description)})

    fact_types: ClassVar[Mapping[str, Any]] = {}
    """The types of the `facts`, by name. Facts from a file are checked against them."""

    # -- data

    @abstractmethod
    def load(self, settings: S, data_dir: Path | None = None) -> Dataset[Any]:
        """The data; of training and validation no more than ``settings.limit`` records each."""

    def resolve(self, settings: S, data_dir: Path | None = None) -> tuple[S, str]:
        """The settings with every "auto" decided that depends on files, and a line that says so (or nothing)."""
        return settings, ""

    def facts(self, settings: S, data: Dataset[Any]) -> dict[str, Any]:
        """Facts about the data that the model depends on: vocabulary, mean of the target."""
        return {}

    def check(self, data: Dataset[Any], facts: Facts) -> None:
        """Raise a `DataError` if a model with these facts cannot be measured on these data."""

    def arguments(self, settings: S, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        """The function that makes the model's arguments from a record."""
        raise NotImplementedError

    @property
    def by_record(self) -> bool:
        """Whether each record is one instance, whatever the epoch: if `instances` is not overridden."""
        return type(self).instances is Workload.instances

    def instances(
        self, graph: Compiled, settings: S, facts: Facts, data: Dataset[Any], split: str, epoch: int | None = None
    ) -> Iterator[Instance]:
        """The instances of a split: in the order of an epoch (from 1), or in the order of the records."""
        return graph.instances(map(self.arguments(settings, facts), ordered(data.splits[split], settings, epoch)))

    # -- model

    @abstractmethod
    def model(self, settings: S, facts: Facts) -> Model:
        """The model, its weights drawn from torch's generator."""

    @abstractmethod
    def example(self, settings: S) -> tuple[Any, ...]:
        """The example that the model is compiled with."""

    def build(self, settings: S, facts: Facts) -> Compiled:
        """The graph, its weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = self.model(settings, facts)
        return compile(model, *self.example(settings))

    def begin(self, graph: Compiled, settings: S, data: Dataset[Any], data_dir: Path | None = None) -> None:
        """Initialise weights before training, for example with word vectors."""

    # -- questions

    def ask(self, inputs: Sequence[str], settings: S, facts: Facts, asking: Asking) -> list[Question]:
        """The questions from the command line's inputs. A fault is a `DataError` with its position."""
        raise DataError(f"{self.name} has no input that a person could write: 'ampnet evaluate' measures such a model")

    @property
    def posted(self) -> str:
        """The input that `told` takes, in half a sentence. Empty: none."""
        return self.input

    def told(self, text: str, settings: S, facts: Facts) -> Question:
        """The question of a text that somebody sent. A file is its contents, and never a name of a file here."""
        questions = self.ask([text], settings, facts, Asking())
        if len(questions) != 1:
            raise DataError(f"a text has one question; this one has {len(questions)}. It is {self.posted}")
        return questions[0]

    def parted(self, text: str) -> list[str]:
        """Split a text from stdin into inputs: one a line."""
        return [line for line in text.splitlines() if line.strip()]


def measured(data: Dataset[Any]) -> str:
    """The name of the split that a run is measured on: "valid", or "test" where there is no other."""
    return "valid" if "valid" in data.splits else "test"


def limited(data: D, settings: Training) -> D:
    """The data limited to ``settings.limit`` records for training and for validation."""
    some = {name: data.splits[name][: settings.limit] for name in ("train", measured(data))}
    return replace(data, splits={**data.splits, **some})


def ordered(split: Split[Any], settings: Training, epoch: int | None) -> Split[Any]:
    """The records in the order of an epoch (from 1); None: in their own order."""
    return split if epoch is None else split.shuffled(settings.seed, epoch)


def best(scores: Tensor) -> tuple[int, list[float]]:
    """The class with the highest score, and the probabilities of all."""
    probabilities = torch.softmax(scores.to(torch.float64), -1)
    return int(probabilities.argmax()), probabilities.tolist()
