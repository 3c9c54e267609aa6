"""Gathered: converts reported rows of a stream of predictions to what ``forward`` returns for each instance.

    reported, wave by wave       rows of Result nodes, with instance and element of each
    at the end                   for each Result, all rows sorted by position and element, split by position;
                                 then, for each instance, its values in the nest that ``forward`` returns

The tensors of one stream's results share memory (they are slices of one tensor): ``clone()`` one to keep it without the
others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.instance import Instance
from ampnet.lang.nest import leaves, rebuild
from ampnet.lang.prediction import Output, Prediction
from ampnet.lang.symbols import Each
from ampnet.lang.value import Value
from ampnet.nodes.node import Report
from ampnet.state import Ints


class Gathered:
    """Collects the reported rows of a stream; returns what ``forward`` would return for each instance."""

    def __init__(self, graph: Prediction) -> None:
        self.graph = graph
        self._found: dict[str, list[tuple[Ints, Ints, Tensor]]] = {output.node: [] for output in graph.outputs}
        """By node, for each report: positions in the stream, elements, and the rows."""
        self._records: list[int] = []
        self._outer: dict[str, list[Ints]] = {o.node: [] for o in graph.outputs if o.outer is not None}
        """For nested elements, by node and instance: the positions of the outer elements."""

    def add(self, report: Report, positions: Ints) -> None:
        """Add reported rows. ``positions``: the position in the stream of each message."""
        assert report.prediction is not None
        axes = next(output.axes for output in self.graph.outputs if output.node == report.node)
        at = np.array([report.states.column(axis) for axis in axes], dtype=np.int64).reshape(len(axes), len(positions))
        if report.offsets is not None:
            positions, at = np.repeat(positions, report.rows), np.repeat(at, report.rows, axis=1)
        # The rows are in memory that the next wave will use.
        self._found[report.node].append((positions, at, report.prediction.clone()))

    def pump(self, instance: Instance) -> None:
        """Add the next instance of the stream."""
        self._records.append(instance.records)
        for node, known in self._outer.items():
            known.append(instance._memo[node])

    def results(self, count: int) -> list[Any]:
        """Returns the results of the first ``count`` instances, in the order of the stream."""
        del self._records[count:]
        columns = [self._column(output) for output in self.graph.outputs]
        nest, fixed = self.graph.returned, list(leaves(self.graph.returned))
        changing = [isinstance(leaf, Value | Each) for leaf in fixed]
        if len(fixed) == 1 and nest is fixed[0]:
            return columns[0]
        out = []
        for values in zip(*columns, strict=True):
            mine = iter(values)
            every = [next(mine) if changes else leaf for changes, leaf in zip(changing, fixed, strict=True)]
            out.append(rebuild(nest, iter(every)))
        return out

    def _column(self, output: Output) -> list[Any]:
        """Returns one value for each instance."""
        found, records = self._found.pop(output.node), self._records
        if not found:  # a family without elements in any instance
            nothing = torch.empty(0, *output.row.shape, dtype=output.row.dtype)
            found = [(np.zeros(0, dtype=np.int64), np.zeros((len(output.axes), 0), dtype=np.int64), nothing)]
        positions = np.concatenate([p for p, _, _ in found])
        at = np.concatenate([a for _, a, _ in found], axis=1)
        rows = torch.cat([r for _, _, r in found]) if len(found) > 1 else found[0][2]
        order = np.lexsort((*at[::-1], positions))
        if (np.diff(order) != 1).any():
            rows, at = rows.index_select(0, torch.from_numpy(order).to(rows.device)), at[:, order]
        if not output.axes and len(rows) == len(records):
            return list(rows.unbind(0))
        counts = np.bincount(positions, minlength=len(records))
        pieces = rows.split(counts.tolist())
        if output.outer is None:
            return [_shaped(piece, bool(output.axes), n) for piece, n in zip(pieces, records, strict=True)]
        spans = pairwise(np.concatenate(([0], np.cumsum(counts))).tolist())
        elements = self._outer[output.node][: len(records)]
        return [
            _nested(piece, at[:, a:b], outer, n)
            for piece, (a, b), outer, n in zip(pieces, spans, elements, records, strict=True)
        ]


def _shaped(rows: Tensor, family: bool, records: int) -> Tensor:
    """Shape all rows of a value of one instance, which stands for ``records`` records."""
    if records == 1:
        return rows if family else rows[0]
    return rows.view(-1, records, *rows.shape[1:]) if family else rows


def _nested(rows: Tensor, at: Ints, outer: Ints, records: int) -> Any:
    """Returns the rows of nested elements as a list with an entry for each outer element. ``at`` and ``outer``: the
    positions of rows and of outer elements, by axis; both sorted."""
    if not len(outer):
        return _shaped(rows, True, records)
    out = []
    for place in np.unique(outer[0]).tolist():
        a, b = np.searchsorted(at[0], (place, place + 1)).tolist()
        out.append(_nested(rows[a:b], at[1:, a:b], outer[1:, outer[0] == place], records))
    return out
