"""QM9: a gated graph network, hidden 100, four steps, four kinds of bonds, one number of a molecule; Adam.

Generated molecules are of the size of the real ones: 7 to 9 heavy atoms (mostly 9) in a chain with side branches, up
to three bonds that close rings, and about 9 hydrogens anywhere; most bonds are single. Targets have mean 0 and
deviation 1.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ampnet.data import load
from ampnet.data.qm9 import FEATURES, KINDS, Molecule, arguments
from ampnet.models import Qm9
from bench.batch import Record
from bench.peers import ggsnn as peers
from bench.peers.deep_graph import Qm9Dgl
from bench.peers.foreign import Foreign
from bench.peers.geometric import Qm9Geometric
from bench.peers.peer import compiled
from bench.workload import Bound, Data, Ours, Target, Wanted, Workload

HIDDEN, STEPS = 100, 4
TRAIN, VALID = 4_000, 1_000
"""Of 117,000 and 13,831: as many as a run of some seconds gets through."""
HEAVY = {7: 0.03, 8: 0.12, 9: 0.85}
ELEMENTS = {6: 0.72, 7: 0.12, 8: 0.15, 9: 0.01}
CHAIN = (0.74, 0.10, 0.05, 0.11)
RING = (0.74, 0.10, 0.00, 0.16)
HYDROGENS = (9.2, 2.6)
FEWEST, MOST = 2, 20


def molecule(rng: np.random.Generator) -> Molecule:
    """A molecule. Its "dipole" follows from its atoms and bonds, and is not physics."""
    heavy = int(rng.choice(list(HEAVY), p=list(HEAVY.values())))
    hydrogens = int(np.clip(round(rng.normal(*HYDROGENS)), FEWEST, MOST))
    atoms = np.ones(heavy + hydrogens, dtype=np.int64)
    atoms[:heavy] = rng.choice(list(ELEMENTS), heavy, p=list(ELEMENTS.values()))
    second = np.arange(1, heavy)
    first = rng.integers(np.maximum(0, second - 3), second)
    rings = [rng.choice(heavy, 2, replace=False) for _ in range(int(rng.integers(0, 4)))]
    bonds = np.concatenate(
        (
            np.stack((first, second, rng.choice(KINDS, len(second), p=CHAIN)), 1),
            np.array([(a, b, rng.choice(KINDS, p=RING)) for a, b in rings], dtype=np.int64).reshape(-1, 3),
            np.stack((rng.integers(0, heavy, hydrogens), heavy + np.arange(hydrogens), np.zeros(hydrogens, int)), 1),
        )
    )
    pull = (atoms[bonds[:, 0]] - atoms[bonds[:, 1]]) * (1 + bonds[:, 2])
    return Molecule(0, atoms, np.zeros(len(atoms), dtype=np.int64), bonds, float(np.abs(pull).sum()) / 10)


def data(wanted: Wanted) -> Data:
    if wanted.real("qm9"):
        found = load("qm9", wanted.folder)
        splits = found.train.shuffled(wanted.seed)[: wanted.records(TRAIN)], found.valid[: wanted.records(VALID)]
        parts, kind = [list(split) for split in splits], "real"
    else:
        rng = np.random.default_rng((wanted.seed, 3))
        parts, kind = [[molecule(rng) for _ in range(wanted.records(n))] for n in (TRAIN, VALID)], "generated"
    targets = np.array([one.dipole for one in parts[0]])
    mean, std = float(targets.mean()), float(targets.std())
    train, valid = ([_record(one, mean, std) for one in part] for part in parts)
    facts = {
        "atoms": float(np.mean([len(one.atoms) for one in parts[0]])),
        "edges": 2 * float(np.mean([len(one.bonds) for one in parts[0]])),
    }
    return Data(kind, wanted.batches(train), wanted.batches(valid), facts)


def _record(one: Molecule, mean: float, std: float) -> Record:
    return arguments(one, mean, std)


def flops(data: Data) -> float:
    """One product for each edge, as the paper has it. (One for each kind that arrives at an atom would be fewer.)"""
    atoms, edges = data.facts["atoms"], data.facts["edges"]
    step = edges * HIDDEN * HIDDEN + atoms * 2 * HIDDEN * 3 * HIDDEN
    return 3 * 2 * (STEPS * step + atoms * 2 * HIDDEN * 2 * HIDDEN + HIDDEN)


QM9 = Workload(
    name="qm9",
    about=f"gated graph network, hidden {HIDDEN}, {STEPS} steps, Adam, updates of 20 molecules",
    unit="molecules",
    batch=20,
    data=data,
    model=lambda data: Qm9(FEATURES, HIDDEN, STEPS, KINDS),
    flops=flops,
    optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True),
    ours={"ours": Ours(in_flight=20, every=20)},
    peers={
        "torch sparse": peers.Qm9Sparse,
        "torch compile": compiled(peers.Qm9Sparse, dynamic=True),
        "pyg": Qm9Geometric,
        "dgl": Qm9Dgl,
    },
    foreign={"jax": Foreign("bench.peers.jax_ggsnn:Qm9")},
    base="torch sparse 1 thread",
    each=160,
    target=Target("absolute_error", 0.15),
    rival="torch sparse",
    bounds=(Bound("ours 16 replicas", "torch *", 8.0),),
    external="qm9_ggsnn.py",
)
