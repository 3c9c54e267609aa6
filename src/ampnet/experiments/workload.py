"""A workload: a data set, a model, the paper's settings and target, and what its input looks like to people.

One description, for all that is done with it:

    train        load ──> facts ──> build ──> begin ──> instances of every epoch
    evaluate     a saved model: settings, facts ──> build;  load ──> instances of a split
    predict      a saved model: settings, facts ──> build;  ask: text ──> questions ──> answers

**Facts** are what a model must know of the data it was made for: the words of a vocabulary, the mean of a target. They
are plain data and are saved with the model, so that it can be made again, and asked, where the data are not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ampnet.data import Dataset, Split
from ampnet.errors import DataError
from ampnet.experiments.settings import Training
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model, compile

S = TypeVar("S", bound=Training)
D = TypeVar("D", bound=Dataset[Any])

Facts = Mapping[str, Any]
Result = tuple[str, dict[str, int], Tensor]
"""The Loss that reported it, the state, and the rows of a prediction."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says."""

    text: str
    """For people; may have several lines."""
    data: Mapping[str, Any]
    """The same for programs."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something that a model is asked."""

    arguments: tuple[Any, ...]
    """What the model takes. Labels are unknown."""
    answer: Callable[[Sequence[Result]], Answer]
    """What its results mean."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How input is to be taken, where there is a choice. Each is an option of ``ampnet predict``."""

    invert: bool | None = None
    """Of images: whether light and dark change places; None: where the border is light."""


@dataclass(frozen=True)
class Workload(ABC, Generic[S]):
    """Base of the workloads. See the head of this file."""

    settings: type[S]
    """Their defaults are the paper's."""
    name: str
    about: str
    """What is trained on what, in half a sentence."""
    unit: str
    """What the records are, in the plural."""
    paper_target: float | None
    """What the paper trains to."""
    metric: str = "accuracy"
    """What a run is measured by."""
    higher_is_better: bool = True
    input: str = ""
    """What ``predict`` takes, in half a sentence. Empty: there is no form of it that a person could write."""
    files: bool = field(default=True, kw_only=True)
    """Whether its data are in files, and not generated."""
    nodes: str = field(default="", kw_only=True)
    """Names of nodes, for the help of options that take some."""

    # -- data

    @abstractmethod
    def load(self, settings: S, data_dir: Path | None = None) -> Dataset[Any]:
        """The data; no more of the training records than ``settings.limit``."""

    def facts(self, settings: S, data: Dataset[Any]) -> dict[str, Any]:
        """What the model must know of the data."""
        return {}

    def check(self, data: Dataset[Any], facts: Facts) -> None:
        """Raise a `DataError` if a model with these facts cannot be measured on these data."""

    def arguments(self, settings: S, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        """From a record to what the model takes."""
        raise NotImplementedError

    @property
    def by_record(self) -> bool:
        """Whether each record is an instance of its own, whatever the epoch: where `instances` is the one below."""
        return type(self).instances is Workload.instances

    def instances(
        self, graph: Compiled, settings: S, facts: Facts, data: Dataset[Any], split: str, epoch: int | None = None
    ) -> Iterator[Instance]:
        """Those of a split: in the order of an epoch, from 1, or as the records stand."""
        return graph.instances(map(self.arguments(settings, facts), ordered(data.splits[split], settings, epoch)))

    # -- model

    @abstractmethod
    def model(self, settings: S, facts: Facts) -> Model:
        """The model, its weights drawn from torch's generator."""

    @abstractmethod
    def example(self, settings: S) -> tuple[Any, ...]:
        """What the model is compiled on."""

    def build(self, settings: S, facts: Facts) -> Compiled:
        """The graph, its weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = self.model(settings, facts)
        return compile(model, *self.example(settings))

    def begin(self, graph: Compiled, settings: S, data: Dataset[Any], data_dir: Path | None = None) -> None:
        """Before training: give weights a better start than a random one, where there is one."""

    # -- questions

    def ask(self, inputs: Sequence[str], settings: S, facts: Facts, asking: Asking) -> list[Question]:
        """Questions, of what was given on the command line. What cannot be read is a `DataError` with its place."""
        raise DataError(f"{self.name} has no input that a person could write: 'ampnet evaluate' measures such a model")

    def parted(self, text: str) -> list[str]:
        """The inputs that are in a text from stdin: one a line."""
        return [line for line in text.splitlines() if line.strip()]


def measured(data: Dataset[Any]) -> str:
    """The name of the split that a run is measured on: "valid", or "test" where there is no other."""
    return "valid" if "valid" in data.splits else "test"


def limited(data: D, settings: Training) -> D:
    """The same data with no more training records than asked for."""
    return replace(data, splits={**data.splits, "train": data.train[: settings.limit]})


def ordered(split: Split[Any], settings: Training, epoch: int | None) -> Split[Any]:
    """The records in the order of an epoch, from 1; None: as they stand."""
    return split if epoch is None else split.shuffled(settings.seed, epoch)


def one_row(results: Sequence[Result]) -> Tensor:
    """The prediction of a question that has one result of one row."""
    ((_, _, rows),) = results
    return rows[0]


def best(scores: Tensor) -> tuple[int, list[float]]:
    """The class with the highest score, and the probabilities of all."""
    probabilities = torch.softmax(scores.to(torch.float64), -1)
    return int(probabilities.argmax()), probabilities.tolist()
