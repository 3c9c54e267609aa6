"""Pictures of the page of results: which there are, and painting all of them.

    mnist, list-reduction, ...   accuracy against seconds and epochs           `draw.convergence`
    time                         seconds to the target on 16 cores             `draw.sixteen`
    grid                         the asynchrony grid                           `draw.grid`
    frequency, staleness         gradients in an update; remedies              `draw.studies`

There is a picture where there is a result for it. `draw.style` has what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.paper.draw.convergence import columns, convergence
from bench.paper.draw.grid import grid
from bench.paper.draw.sixteen import sixteen
from bench.paper.draw.studies import frequency, staleness
from bench.paper.figures import PAPER
from bench.paper.results import Results
from bench.picture import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pictures(results: Results) -> dict[str, Callable[[], Figure]]:
    """Returns the pictures that there are results for, by name, as functions that make them."""
    found: dict[str, Callable[[], Figure]] = {
        name: partial(convergence, paper, results) for name, paper in PAPER.items() if columns(paper, results)
    }
    if results.of("table", cores=16):
        found["time"] = partial(sixteen, results)
    for study, make in (("grid", grid), ("frequency", frequency), ("staleness", staleness)):
        if results.of(study):
            found[study] = partial(make, results)
    return found


def paint_all(results: Results, folder: Path) -> list[str]:
    """Write all pictures to a folder; returns their names. Other files there are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    found = pictures(results)
    for name, make in found.items():
        save(make(), folder / f"{name}.png")
    return list(found)
