"""bAbI task 15, basic deduction (Weston et al. 2015), as graphs; and the paper's version with 54 nodes.

    Gertrude is a mouse. Mice are afraid of wolves.              What is Gertrude afraid of?  Wolves.

    Gertrude ──is──> mouse ──has_fear──> wolf                    two hops: the marked node's species, then what it fears

Individuals and species are nodes, facts are edges of kind 0 (is) and 1 (has_fear), each also reversed (kinds 2 and 3).
The individual in question is marked, and the answer is a node. Three data sets hold such `Deduction` records:

    babi15            54 nodes, random: 100 new ones every epoch, 1,000 for validation
    babi15-en[-10k]   the original text (8 nodes), see `ampnet.data.babi15_text`
    babi15-symbolic   the graphs that GGS-NNs are usually trained on (8 nodes), see `ampnet.data.babi15_symbolic`

The paper inflates "each graph from the default 8 nodes to 54" and keeps "the two-hop complexity", but does not say how.
Here the four species stay, and there are 50 individuals instead of 4: every graph has the same shape, the answer is one
of four nodes as before, and the question still takes two hops.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ampnet.data.dataset import Dataset, Drawn, Split
from ampnet.data.entry import Entry
from ampnet.errors import DataError
from ampnet.lang.edges import Edges
from ampnet.lang.spaces import Seq
from ampnet.state import Ints

IS, HAS_FEAR = 0, 1
KINDS = 4
HIDDEN = 5


@dataclass(frozen=True, slots=True)
class Deduction:
    """Facts about nodes, and a question."""

    nodes: int
    facts: Ints
    """[facts, 3]: a node, `IS` or `HAS_FEAR`, another node."""
    asked: int
    """The node that the question is about."""
    answer: int
    """The node that answers it."""


def arguments(deduction: Deduction, hidden: int = HIDDEN) -> tuple[Seq, Edges, Tensor]:
    """Returns the arguments of `Babi15`: annotations as wide as the hidden state; the first marks the asked node."""
    a, fact, b = deduction.facts.T
    x = np.zeros((deduction.nodes, hidden), dtype=np.float32)
    x[deduction.asked, 0] = 1
    graph = Seq(x=torch.from_numpy(x))
    edges = Edges(graph, np.concatenate((a, b)), np.concatenate((b, a)), kind=np.concatenate((fact, fact + 2)))
    return graph, edges, torch.tensor(deduction.answer)


def deduced(facts: Ints, asked: int) -> int | None:
    """Returns the answer that follows from the facts over two hops; None if there is none, or more than one."""
    at = {asked}
    for hop in (IS, HAS_FEAR):
        at = {int(b) for a, fact, b in facts.tolist() if fact == hop and a in at}
    return at.pop() if len(at) == 1 else None


def drawn(rng: np.random.Generator, nodes: int = 54, species: int = 4) -> Deduction:
    """Returns a random graph: all but ``species`` nodes are individuals, and every species fears another."""
    individuals = nodes - species
    place = rng.permutation(nodes)  # the numbers of nodes carry no meaning
    kind = rng.integers(0, species, individuals)
    fear = (np.arange(species) + rng.integers(1, species, size=species)) % species
    fact = np.repeat([IS, HAS_FEAR], [individuals, species])
    facts = np.stack((place, fact, place[individuals + np.concatenate((kind, fear))]), axis=1)
    asked = int(rng.integers(individuals))
    return Deduction(nodes, facts, int(place[asked]), int(place[individuals + fear[kind[asked]]]))


def read(
    folder: Path | None = None, seed: int = 0, train: int = 100, valid: int = 1000, nodes: int = 54
) -> Dataset[Deduction]:
    """Read the random version. Training graphs are new in every epoch (`Split.shuffled` draws them); validation's
    stay."""
    if train < 1 or valid < 1 or nodes < 5:
        raise DataError(f"babi15: {train} + {valid} graphs of {nodes} nodes were asked for; 1 and 5 are the least")

    def draw(rng: np.random.Generator) -> Deduction:
        return drawn(rng, nodes)

    fixed: Split[Deduction] = Drawn("babi15 valid", draw, valid, (seed, 1))
    splits = {
        "train": Drawn("babi15 train", draw, train, (seed, 0)),
        "valid": Split("babi15 valid", fixed.__getitem__, valid),
    }
    return Dataset("babi15", splits, arguments)


ENTRY = Entry(
    name="babi15",
    about="basic deduction, the paper's 54 nodes; fresh graphs every epoch",
    read=read,
    counts={"train": 100, "valid": 1_000},
    licence="generated",
)
