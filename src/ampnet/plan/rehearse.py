"""Rehearse: send instances through the graph on their states alone, and note which rows are made of which.

Control flow never looks into a payload, so a run can be rehearsed without computing anything. Messages carry, instead
of rows, the **numbers** of rows; nodes that send them about do what they always do, and a node that computes notes the
numbers that came in and gives new ones to what comes out:

    message at Linear     payload [31, 32, 35]          Step(linear, round 2, reads [31, 32, 35], makes 40, 41, 42)
    what leaves           payload [40, 41, 42]

A loop is served round by round, every port taking all that waits, so an instance is always at the same node in the same
round, whatever it is rehearsed with. So the record of one instance can be combined later with what was
noted of others (`ampnet.plan.scoring`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import NodeError
from ampnet.graph import End
from ampnet.message import Messages
from ampnet.nodes.concat import Concat
from ampnet.nodes.culprit import culprit
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Outputs, Report
from ampnet.nodes.reduce import Reduce
from ampnet.nodes.result import Result
from ampnet.nodes.rows import Rows
from ampnet.nodes.transform import Parameterised
from ampnet.plan.sites import Site, Sites
from ampnet.state import Ints, States


class Step:
    """One invocation of a site: the rows it reads and makes."""

    __slots__ = ("base", "counts", "messages", "offsets", "owners", "round", "rows", "site", "sources", "states")

    def __init__(
        self, site: Site, round_: int, base: int, rows: int, sources: list[Ints], counts: Ints | None, like: Messages
    ) -> None:
        self.site, self.round, self.base, self.rows = site, round_, base, rows
        self.sources = sources
        """Of each slot: numbers of rows, one for each row made; of a reduction, ``counts`` for each row made."""
        self.counts = counts
        """Of a reduction; of a loss, the offsets of labels; of a module of whole messages, ``[ports, messages]``."""
        self.states: States = like.states
        self.offsets = like.offsets
        """Of the rows that the messages have here: those made; of a loss, those judged."""
        self.messages = len(like)
        instances = like.states.columns[0]
        self.owners: Ints = instances if like.offsets is None else np.repeat(instances, like.row_counts())


class Rehearsal:
    """The steps of some instances, from what was pumped for them."""

    def __init__(self, sites: Sites, beat: Callable[[], None] = lambda: None) -> None:
        """``beat``: a heartbeat, called in every round."""
        self.sites, self.beat = sites, beat
        self.steps: list[Step] = []
        self.rows = 0
        self.childless: list[Ints] = []
        """Rows that nothing is computed from: their gradient is zero."""
        self._waiting: dict[tuple[str, int], list[Messages]] = {}
        self._round = 0

    def run(self, pumped: Sequence[tuple[End, Messages]]) -> None:
        """``pumped``: the messages of all inputs and the ports they go to."""
        for end, messages in pumped:
            self._arrive((end.node, end.port), self._note(self.sites.pumped_at(end), [], None, messages))
        for loop in self.sites.order:
            self._round = 0
            while any(port in self._waiting for port in loop):
                self.beat()
                for port in loop:
                    waiting = self._waiting.pop(port, None)
                    if waiting is not None:
                        self._serve_named(port, waiting)
                self._round += 1

    def _arrive(self, port: tuple[str, int], messages: Messages) -> None:
        if len(messages):
            self._waiting.setdefault(port, []).append(messages)

    def _send(self, node: str, port: int, messages: Messages) -> None:
        self._arrive(self.sites.leads[node, port], messages)

    def _serve_named(self, port: tuple[str, int], waiting: Sequence[Messages]) -> None:
        """Serve a port; an exception is raised with node and states."""
        messages = waiting[0]
        try:
            messages = Messages.merge(waiting)
            self._serve(port, messages)
        except Exception as error:
            states = culprit(self.sites.nodes[port[0]], messages).states
            raise NodeError(port[0], "forward", states, "plan", error) from error

    def _serve(self, port: tuple[str, int], messages: Messages) -> None:
        name, number = port
        node = self.sites.nodes[name]
        if node.role == "route":
            outputs = node.forward(number, messages)
            for output in outputs:
                assert not isinstance(output, Report)
                self._send(name, output[1], output[2])
            if node.fans_out:
                self._find_childless(_numbers(messages.payload), outputs)
            return
        if isinstance(node, Loss):
            for joined in node.join.arrive(number, messages):
                batch = Messages.trusted(None, joined.states(0), joined.offsets(0), False)
                sources = [_numbers(p) for p in joined.payloads]
                self._note(self.sites.made_at[name, 0], sources, joined.offsets(1), batch)
        elif isinstance(node, Result):
            self._note(self.sites.made_at[name, 0], [_numbers(messages.payload)], None, messages)
        elif isinstance(node, Parameterised):
            for arrived in node.arrive(number, messages):
                site, sources = self.sites.made_at[name, arrived.site], [_numbers(p) for p in arrived.payloads]
                counts = arrived.counts() if site.whole_messages else None
                self._send(name, arrived.site, self._note(site, sources, counts, arrived.leaving(None)))
        elif isinstance(node, Concat | Rows) and node.join is not None:
            for joined in node.join.arrive(number, messages):
                states = node.states_of(joined)
                batch = Messages.trusted(None, states, joined.last.offsets, False)
                sources = [_numbers(p) for p in joined.payloads]
                self._send(name, 0, self._note(self.sites.made_at[name, 0], sources, None, batch))
        elif isinstance(node, Reduce):
            self._reduce(name, node, messages)
        else:
            for out in node.leads_to(number):
                site = self.sites.made_at[name, out]
                self._send(name, out, self._note(site, [_numbers(messages.payload)], None, messages))

    def _find_childless(self, numbers: Ints, outputs: Outputs) -> None:
        """Note the rows of which no child was sent."""
        left = np.zeros(self.rows, dtype=bool)
        left[numbers] = True
        for output in outputs:
            assert not isinstance(output, Report)
            left[_numbers(output[2].payload)] = False
        childless = np.flatnonzero(left[numbers])
        if len(childless):
            self.childless.append(numbers[childless])

    def _reduce(self, name: str, node: Reduce, messages: Messages) -> None:
        numbers, counts = _numbers(messages.payload), messages.row_counts()
        single = Messages.trusted(None, messages.states, None, False)
        site = self.sites.made_at[name, 0]
        if node.how != "beside":
            self._send(name, 0, self._note(site, [numbers], counts, single))
            return
        node.check_counts(messages)
        beside = [numbers[i :: node.count] for i in range(node.count)]
        self._send(name, 0, self._note(site, beside, None, single))

    def _note(self, site: Site, sources: list[Ints], counts: Ints | None, like: Messages) -> Messages:
        """Record a step, and number its output rows."""
        rows, base = like.rows, self.rows
        self.steps.append(Step(site, self._round, base, rows, sources, counts, like))
        self.rows = base + rows
        return Messages.trusted(torch.arange(base, base + rows), like.states, like.offsets, False)


def _numbers(payload: Tensor | None) -> Ints:
    assert payload is not None
    numbers: Ints = payload.numpy()
    return numbers
