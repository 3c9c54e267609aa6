"""Standing: how ours compares with others on the same cores, from the rates of one result.

    one core, torch_manual        ours               / hand-written programs of one thread
    two cores, hogwild2           ours 2 replicas    / the hand-written program in two processes
    N cores, torch                ours N replicas    / the fastest torch program, with 1 to N threads
    N cores, framework            ours N replicas    / the fastest of all peers: torch, PyG, DGL, JAX
    cuda, torch or PyG            ours               / the fastest of torch and PyG on the device

Peers are programs that a user of a framework writes; hand-written ones (kind "external") have a line of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rows import OURS


@dataclass(frozen=True, slots=True)
class Standing:
    """One comparison."""

    name: str
    ours: str
    """The row of ours."""
    than: str
    """The fastest row that it is compared with."""
    ratio: float


def standings(lines: Sequence[Mapping[str, Any]], device: str = "cpu") -> list[Standing]:
    """All comparisons that the rows of a result allow. ``lines``: by row, kind, cores and best."""
    found: list[Standing] = []
    mine = [line for line in lines if line["kind"] == "ours" and line["row"] in _comparable(lines)]
    for line in mine:
        cores = line["cores"]
        words = "one core" if cores == 1 else "two cores" if cores == 2 else f"{cores} cores"
        where = words if device == "cpu" else device
        others = [one for one in lines if one["cores"] <= cores]
        for name, kept in _others(cores):
            best = max(filter(kept, others), key=lambda one: one["best"], default=None)
            if best is not None:
                found.append(Standing(f"{where}, {name}", line["row"], best["row"], line["best"] / best["best"]))
    return found


def _comparable(lines: Iterable[Mapping[str, Any]]) -> set[str]:
    """Rows of ours that stand for it: the plain one, and replicas."""
    return {one["row"] for one in lines if one["row"] == OURS or one["row"].endswith("replicas")}


def _others(cores: int) -> list[tuple[str, Callable[[Mapping[str, Any]], bool]]]:
    out: list[tuple[str, Callable[[Mapping[str, Any]], bool]]] = [
        ("torch", lambda one: one["kind"] == "peer" and one["row"].startswith("torch")),
        ("torch or PyG", lambda one: one["kind"] == "peer" and one["row"].startswith(("torch", "pyg"))),
        ("framework", lambda one: one["kind"] == "peer"),
    ]
    if cores == 1:
        out.append(("torch_manual", lambda one: one["row"].startswith("torch_manual")))
    if cores == 2:
        out.append(("hogwild2", lambda one: one["kind"] == "external" and one["row"].endswith("hogwild2")))
    return out
