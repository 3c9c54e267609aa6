"""QM9 and the gated graph network: hidden 100, four steps; the dipole moment, to an error of 4.6 times 0.1 Debye.

16 molecules are in flight, as in the paper. It names no optimizer: Adam, the clipping of gradients, the decay of the
learning rate and updates of 32 molecules are ours.
The model predicts (dipole - mean) / deviation; errors are reported in units of chemical accuracy, 0.1 Debye.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from ampnet.data import Dataset, load, qm9
from ampnet.data.qm9 import CHEMICAL_ACCURACY, FEATURES, KINDS, Molecule, Molecules
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import Qm9Settings as Settings
from ampnet.experiments.molecules import of_file, of_molfile, of_smiles
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Workload, limited
from ampnet.lang import Model
from ampnet.models import Qm9

METHANOL = Molecule(
    0, np.array([6, 8, 1, 1, 1, 1]), np.zeros(6), np.array([(0, a, 0) for a in (1, 2, 3, 4)] + [(1, 5, 0)]), 0.0
)


class Dipoles(Workload[Settings]):
    """See the head of this file."""

    fact_types: ClassVar[Mapping[str, Any]] = {"mean": float, "std": float}

    def load(self, settings: Settings, data_dir: Path | None = None) -> Molecules:
        data = load("qm9", data_dir, seed=settings.split)
        assert isinstance(data, Molecules)
        return limited(data, settings)

    def facts(self, settings: Settings, data: Dataset[Any]) -> dict[str, Any]:
        assert isinstance(data, Molecules)
        return {"mean": data.mean, "std": data.std or 1.0}

    def arguments(self, settings: Settings, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        return partial(qm9.arguments, mean=facts["mean"], std=facts["std"], hydrogens=settings.hydrogens)

    def model(self, settings: Settings, facts: Facts) -> Model:
        unit = facts["std"] / CHEMICAL_ACCURACY
        kind: Literal["squared_error", "absolute_error"] = (
            "squared_error" if settings.loss == "squared" else "absolute_error"
        )
        return Qm9(FEATURES, settings.hidden, settings.steps, KINDS, unit, kind)

    def example(self, settings: Settings) -> tuple[Any, ...]:
        return qm9.arguments(METHANOL, hydrogens=settings.hydrogens)

    def ask(self, inputs: Sequence[str], settings: Settings, facts: Facts, asking: Asking) -> list[Question]:
        return [_question(text, settings, facts) for text in inputs]

    @property
    def posted(self) -> str:
        return "the text of a mol file (V2000), or SMILES where RDKit is installed"

    def told(self, text: str, settings: Settings, facts: Facts) -> Question:
        molecule = of_molfile(text, "molecule") if "\n" in text else of_smiles(text)
        return _asked("molecule" if "\n" in text else text, molecule, settings, facts)

    def parted(self, text: str) -> list[str]:
        """A mol file, or SMILES, one a line."""
        return [text] if "V2000" in text or "V3000" in text else Workload.parted(self, text)


def _question(text: str, settings: Settings, facts: Facts) -> Question:
    """A file by its name, the text of one, or SMILES."""
    if "\n" in text:
        name, molecule = "stdin", of_molfile(text, "stdin")
    elif Path(text).suffix.lower() in (".mol", ".sdf"):
        name, molecule = text, of_file(Path(text))
    else:
        name, molecule = text, of_smiles(text)
    return _asked(name, molecule, settings, facts)


def _asked(name: str, molecule: Molecule, settings: Settings, facts: Facts) -> Question:
    atoms, bonds, _ = qm9.arguments(molecule, hydrogens=settings.hydrogens)
    return Question((atoms, bonds, None), partial(_answer, name, molecule, facts))


def _answer(name: str, molecule: Molecule, facts: Facts, prediction: Tensor) -> Answer:
    dipole = float(prediction) * facts["std"] + facts["mean"]
    text = f"{name}: dipole moment {dipole:.2f} D  ({len(molecule.atoms)} atoms, hydrogens included)"
    return Answer(text, {"input": name, "dipole": dipole, "atoms": molecule.atoms.tolist()})


WORKLOAD = Dipoles.of(DESCRIBED["qm9"])
