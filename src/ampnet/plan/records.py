"""Records: the scores of a wave, unpacked into one table of each kind.

    scores    7: [ blocks | runs | links ... ]    8: [ blocks | runs | links ... ]
    records   blocks [ of 7 | of 8 ]    runs [ of 7 | of 8 ]    links [ of 7 | of 8 ]    ...

It takes one concatenation and a gather for each table, whatever the number of instances.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampnet.message import ranges
from ampnet.plan.score import HEADER, WIDTHS, Score
from ampnet.state import Ints


class Records:
    """See the head of this file. Tables are ``[columns, records]``, in the order of the scores."""

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores = scores
        numbers = [score.numbers for score in scores]
        flat = numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
        self._flat = flat.astype(np.int64)
        sizes = np.array([len(one) for one in numbers])
        starts = np.cumsum(sizes) - sizes
        header = self._flat[starts[:, None] + np.arange(HEADER)].T
        self.rows: Ints = header[0]
        """Of each instance."""
        self.rounds = int(header[1].max())
        self.single = bool(header[2].all())
        """Whether all messages whose states are told have one row, and one row of labels where they have any."""
        self.counts: dict[str, Ints] = dict(zip(WIDTHS, header[3:], strict=True))
        """By table: the number of records of each instance."""
        self._told: Ints | None = None
        self._at: dict[str, Ints] = {}
        at = starts + HEADER
        for name, width in WIDTHS.items():
            self._at[name] = at
            at = at + width * self.counts[name]

    def table(self, name: str) -> Ints:
        """The table of this name."""
        at, counts, width = self._at[name], self.counts[name], WIDTHS[name]
        if len(at) == 1:
            start = int(at[0])
            flat = self._flat[start : start + width * int(counts[0])]
        else:
            flat = self._flat[ranges(at, width * counts)]
        found: Ints = flat.reshape(-1, width).T
        return found

    def owners(self, name: str) -> Ints:
        """Of each record of a table: the place of its instance."""
        return np.repeat(np.arange(len(self.rows)), self.counts[name])

    def links(self, order: Ints | slice = slice(None), bases: Ints | None = None) -> tuple[Ints, Ints]:
        """The row read and the row made of each link, record by record, the records in this order. ``bases``: the
        first row of each instance; None: rows are numbered within the instance."""
        counts, at, read, made = self.table("links")[3:, order]
        pairs = [score.pairs for score in self.scores]
        sizes = np.array([len(one) for one in pairs])
        flat = pairs[0] if len(pairs) == 1 else np.concatenate(pairs)
        owners = self.owners("links")[order]
        starts = (np.cumsum(sizes) - sizes) // 2
        if bases is not None:
            read, made = read + bases[owners], made + bases[owners]
        where = ranges(at + starts[owners], counts)
        return flat[::2].take(where) + np.repeat(read, counts), flat[1::2].take(where) + np.repeat(made, counts)

    def heard(self, owners: Ints, sites: Sequence[int]) -> int:
        """The number of messages of some instances, by place, that get a gradient at these sites."""
        site, _, messages = self.table("heard")
        return int(messages[np.isin(site, sites) & np.isin(self.owners("heard"), owners)].sum())

    def told(self, site: int, round_: int) -> tuple[Ints, Ints]:
        """The messages of a site in a round: the place of each one's instance, and its values, ``[values, messages]``.
        Where some lack the rows of labels, those are 1."""
        if self._told is None:
            sites, rounds, widths, messages = table = self.table("told")
            sizes = widths * messages
            self._told = np.vstack([table, np.cumsum(sizes) - sizes, self.owners("told")])
            self._told_at = sites * self.rounds + rounds
            self._values = self.table("values")[0]
        which = np.flatnonzero(self._told_at == site * self.rounds + round_)
        _, _, widths, messages, starts, owners = self._told[:, which]
        most = int(widths.max())
        if (widths == most).all():
            values = self._values[ranges(starts, widths * messages)].reshape(-1, most)
        else:
            values = np.ones((int(messages.sum()), most), dtype=np.int64)
            stops = np.cumsum(messages)
            for start, stop, begin, width in zip(stops - messages, stops, starts, widths, strict=True):
                some = self._values[begin : begin + width * (stop - start)]
                values[start:stop, :width] = some.reshape(-1, width)
        return np.repeat(owners, messages), values.T
