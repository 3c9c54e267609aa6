"""The workloads described: name, data, settings with the paper's defaults, target. One table for all commands.

    DESCRIBED["sentiment"] ──> options of `ampnet train sentiment`, names for `draw`, `data`, `profile`, ...
                           ──> `ampnet.experiments.catalog.WORKLOADS["sentiment"]`, which adds data, model and questions

Nothing here imports torch, so that help and completion are quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ampnet.experiments.settings import Optimizer, Training, option

S = TypeVar("S", bound=Training)


@dataclass(frozen=True, kw_only=True)
class Description(Generic[S]):
    """A workload, without the code that loads its data and makes its model."""

    name: str
    about: str
    """Model and data, in half a sentence."""
    settings: type[S]
    """Their defaults are the paper's."""
    unit: str
    """The name of the records, in the plural."""
    paper_target: float | None
    """The value of the metric that the paper trains to."""
    metric: str = "accuracy"
    """The metric that a run is measured by."""
    higher_is_better: bool = True
    input: str = ""
    """The input of ``predict``, in half a sentence. Empty: there is no human-readable form."""
    data: str | None = None
    """The data set, by its name in `ampnet.data.catalog`; None: generated."""
    nodes: str = ""
    """Names of nodes, as examples for the help of options that take some."""

    @property
    def files(self) -> bool:
        """Whether its data are in files, and not generated."""
        return self.data is not None


def _size(default: int, split: str) -> Any:
    return option(default, f"number of generated {split} {{unit}}")


@dataclass(frozen=True, slots=True)
class Bucketed(Training):
    """Workloads whose instances can hold several records."""

    bucket: int = option(100, "{unit} per instance, computed as one batch; 1: single {unit}", "waves")

    def in_flight(self) -> int:
        """The number of instances that hold 400 records."""
        return max(1, 400 // self.bucket)

    def frequency(self) -> int:
        """The number of instances that hold 100 records, or one message."""
        return max(1, 100 // self.bucket) if self.count == "instances" else 1


@dataclass(frozen=True, slots=True)
class MnistSettings(Bucketed):
    """The paper's: SGD with rate 0.1, batches of 100, four in flight."""

    epochs: int = 6
    learning_rate: float = 0.1
    optimizer: Optimizer = "sgd"
    layers: int = option(4, "number of layers; the last classifies, the others are as wide as an image")


@dataclass(frozen=True, slots=True)
class ListReductionSettings(Bucketed):
    """Ours: they reach 97 % in nine epochs."""

    bucket: int = option(100, "{unit} of one length per instance, computed as one batch; 1: single {unit}", "waves")
    train_size: int = _size(100_000, "training")
    valid_size: int = _size(10_000, "validation")
    hidden: int = option(128, "width of the recurrent state")
    learning_rate: float = 3e-3
    decay: float = 0.7
    beta2: float = 0.99


@dataclass(frozen=True, slots=True)
class SentimentSettings(Training):
    """The paper's settings; those that it does not name are from Tai et al. 2015."""

    default_in_flight = 16
    default_frequency = 50
    epochs: int = 10
    count: Literal["messages", "instances"] = "messages"
    update_after: Mapping[str, int] = field(default_factory=lambda: {"embedding": 1000})
    learning_rate: float = 0.05
    rate_of: Mapping[str, float] = field(default_factory=lambda: {"embedding": 0.02})
    optimizer: Optimizer = "adagrad"
    dropout: float = option(
        0.5, "dropout probability of a node's state before its classifier", within="share", metavar="P"
    )
    hidden: int = option(300, "width of a node's state")
    vectors: Literal["auto", "glove300", "wordvec300", "glove50", "random"] = option(
        "auto",
        "word vectors that the embedding is initialised with; random: none, 300 random numbers a word; auto: the first "
        "of glove300 and wordvec300 that is on this machine, else random",
    )


@dataclass(frozen=True, slots=True)
class Babi15Settings(Training):
    """The paper's, and Adam."""

    default_in_flight = 16
    default_frequency = 2
    epochs: int = 20
    learning_rate: float = 0.01
    enough_rows: int | None = None
    train_size: int = option(100, "number of generated training graphs; new ones in every epoch")
    valid_size: int = _size(1_000, "validation")
    size: int = option(54, "nodes in a graph: four species and their individuals", least=5)
    hidden: int = option(5, "width of a node's state")
    steps: int = option(2, "propagation steps")


@dataclass(frozen=True, slots=True)
class Qm9Settings(Training):
    """The paper's, and Adam with clipped gradients and a rate that falls."""

    default_in_flight = 16
    default_frequency = 32
    epochs: int = 60
    target: float | None = option(
        None,
        "stop when the mean absolute error on the validation data, in units of 0.1 Debye, is at most this value",
        shown="{no_target}",
    )
    learning_rate: float = 1e-3
    decay: float = 0.85
    clip_norm: float | None = 1.0
    enough_rows: int | None = None
    hidden: int = option(100, "width of an atom's state")
    steps: int = option(4, "propagation steps")
    loss: Literal["squared", "absolute"] = option(
        "squared", "error that training minimises; the validation's metric is the absolute error in any case"
    )
    hydrogens: Literal["atoms", "counts"] = option(
        "atoms", "hydrogens are atoms of the graph, or only counted in the features of the atoms they are bound to"
    )
    split: int = option(
        0,
        "seed of the random split into training and validation molecules; choose settings on one, report another",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class PermutedLayersSettings(Training):
    """Ours."""

    default_in_flight = 100
    default_frequency = 10
    epochs: int = 10
    learning_rate: float = 0.01
    decay: float = 0.8
    train_size: int = _size(10_000, "training")
    valid_size: int = _size(1_000, "validation")
    width: int = option(16, "numbers in a row, and width of every layer")
    layers: int = option(3, "number of layers; each row goes through all of them")


@dataclass(frozen=True, slots=True)
class AdaptiveDepthSettings(Training):
    """Ours."""

    default_in_flight = 100
    default_frequency = 20
    epochs: int = 10
    learning_rate: float = 0.01
    decay: float = 0.8
    train_size: int = _size(5_000, "training")
    valid_size: int = _size(1_000, "validation")
    hidden: int = option(64, "width of the repeated layer")


DESCRIBED: dict[str, Description[Any]] = {
    one.name: one
    for one in (
        Description(
            name="mnist",
            about="a multilayer perceptron on handwritten digits",
            settings=MnistSettings,
            unit="images",
            paper_target=0.97,
            input="image files (28 x 28 pixels, or scaled to that)",
            data="mnist",
            nodes="hidden_0,hidden_1",
        ),
        Description(
            name="list-reduction",
            about="a vanilla RNN on list reduction, sequences of up to ten tokens",
            settings=ListReductionSettings,
            unit="sequences",
            paper_target=0.97,
            input="an operation and digits, like 'range 3 7 1'",
            nodes="cell,embedding",
        ),
        Description(
            name="sentiment",
            about="a binary Tree-LSTM on the Stanford Sentiment Treebank",
            settings=SentimentSettings,
            unit="trees",
            paper_target=0.82,
            input="sentences with their trees, like '(It (is great))' or '(3 (2 It) (4 (2 is) (4 great)))'",
            data="sst",
            nodes="leaf_cell,branch_cell",
        ),
        Description(
            name="babi15",
            about="a gated graph network on bAbI task 15, basic deduction, with 54 nodes",
            settings=Babi15Settings,
            unit="graphs",
            paper_target=1.0,
            input="facts and questions, like 'Mice are afraid of wolves. Emily is a mouse. What is Emily afraid of?'",
            nodes="propagate_cell,propagate_along_0",
        ),
        Description(
            name="qm9",
            about="a gated graph network on the dipole moments of small molecules (QM9)",
            settings=Qm9Settings,
            unit="molecules",
            paper_target=4.6,
            metric="absolute_error",
            higher_is_better=False,
            input="molecules: .mol or .sdf files (V2000), or SMILES where RDKit is installed",
            data="qm9",
            nodes="propagate_cell,gate",
        ),
        Description(
            name="permuted-layers",
            about="layers applied in an order that each row specifies, on generated rows",
            settings=PermutedLayersSettings,
            unit="rows",
            paper_target=None,
            nodes="layers_0,layers_1",
        ),
        Description(
            name="adaptive-depth",
            about="a layer applied as many times as each point specifies, on generated points",
            settings=AdaptiveDepthSettings,
            unit="points",
            paper_target=None,
            metric="absolute_error",
            higher_is_better=False,
            input="a point and how often to turn it by 20 degrees, like '1, 0, 3'",
            nodes="first,middle",
        ),
    )
}
"""The descriptions, by name."""
