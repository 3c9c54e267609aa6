"""Heard and told: what a score keeps of the messages of a rehearsal, besides their rows.

heard    at sites with parameters: how many messages get a gradient, by round. Those of rows that no loss depends on
         get none, and are not counted by `update`
told     at sites whose node reads states while it computes (losses, results): the states of its messages
"""

from __future__ import annotations

import numpy as np

from ampnet.message import ranges, row_counts
from ampnet.narrow import stable_order
from ampnet.nodes.transform import Parameterised
from ampnet.plan.rehearse import Rehearsal, Step
from ampnet.plan.sites import Sites
from ampnet.state import Column, Ints


def heard_and_told(
    sites: Sites, rehearsal: Rehearsal, lookup: Ints, lowest: int, count: int
) -> tuple[dict[str, tuple[Ints, Ints]], Column]:
    """Returns the tables "heard", "told" and "values" of `ampnet.plan.score`, and for each instance whether all that is
    told has one row. The place of an instance is ``lookup[number - lowest]``; there are ``count`` places."""
    heard: list[Ints] = [np.zeros((0, 4), dtype=np.int64)]
    told: list[Ints] = [np.zeros((0, 5), dtype=np.int64)]
    """(place, record) of each."""
    values: list[Ints] = [np.zeros(0, dtype=np.int64)]
    wanted, single = _wanted(rehearsal), np.ones(count, dtype=bool)
    for step in rehearsal.steps:
        site = step.site
        trained = isinstance(site.node, Parameterised)
        if not site.here or (not trained and not site.looks_at_states):
            continue
        owners = lookup[step.states.columns[0] - lowest]
        if trained:
            heard.append(_record(step, np.bincount(owners[_any_of(wanted[step.base : step.base + step.rows], step)])))
        if site.looks_at_states:
            sites.fields[site.number] = step.states.fields
            table = _values(step)[stable_order(owners)]
            if step.offsets is not None or table.shape[1] > len(step.states.fields):
                single[owners] = False
            records = _record(step, np.bincount(owners))
            told.append(np.insert(records, 3, table.shape[1], axis=1))
            values.append(table.ravel())
    (heard_of, heard_counts), (told_of, told_counts) = _sorted(heard, count), _sorted(told, count)
    before = np.concatenate(told)
    sizes = before[:, 3] * before[:, 4]
    order = stable_order(before[:, 0])
    flat = np.concatenate(values)
    if len(told) > 2:
        flat = flat[ranges((np.cumsum(sizes) - sizes)[order], sizes[order])]
    of_values = np.bincount(before[:, 0], weights=sizes, minlength=count).astype(np.int64)
    tables = {
        "heard": (heard_of, heard_counts),
        "told": (told_of, told_counts),
        "values": (flat.reshape(-1, 1), of_values),
    }
    return tables, single


def _record(step: Step, counts: Ints) -> Ints:
    """(place, site, round, messages) of all places that have some."""
    some = np.flatnonzero(counts)
    out = np.empty((len(some), 4), dtype=np.int64)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = some, step.site.number, step.round, counts[some]
    return out


def _sorted(found: list[Ints], count: int) -> tuple[Ints, Ints]:
    """The records by place, without it, and the number of each place."""
    together = np.concatenate(found)
    order = stable_order(together[:, 0])
    return together[order, 1:], np.bincount(together[:, 0], minlength=count)


def _values(step: Step) -> Ints:
    """Of each message: its rows, its state without the instance, and the rows of its labels or, at a module of whole
    messages, of its ports."""
    columns = [row_counts(step.offsets, step.messages)[None], step.states.columns[1:]]
    if step.counts is not None and step.site.kind == "loss":
        columns.append(np.diff(step.counts)[None])
    elif step.counts is not None and step.site.whole_messages:
        columns.append(step.counts)
    return np.concatenate(columns).T


def _wanted(rehearsal: Rehearsal) -> Column:
    """For each row, whether it gets a gradient. Rows that no loss depends on get none and are not counted."""
    wanted = np.zeros(rehearsal.rows, dtype=bool)
    for rows in rehearsal.childless:
        wanted[rows] = True
    for step in reversed(rehearsal.steps):
        if step.site.kind in ("loss", "result"):
            wanted[step.sources[0]] = True
            continue
        made = wanted[step.base : step.base + step.rows]
        if step.site.whole_messages:
            assert step.counts is not None
            any_row = _any_of(made, step)
            for source, counts in zip(step.sources, step.counts, strict=True):
                wanted[source[np.repeat(any_row, counts)]] = True
            continue
        for source in step.sources if made.any() else ():
            wanted[source[made if step.counts is None else np.repeat(made, step.counts)]] = True
    return wanted


def _any_of(rows: Column, step: Step) -> Column:
    """Of each message of a step: whether it holds of any of its rows, or it has none."""
    if step.offsets is None:
        return rows
    counts = np.diff(step.offsets)
    which = np.repeat(np.arange(step.messages), counts)
    found: Column = (np.bincount(which[rows], minlength=step.messages) > 0) | (counts == 0)
    return found
