"""Captured: training waves that are launched as a whole, without a look at what the device computes.

    lot ──> [1] prepare    its layout, padded to capacities; kept, as its indices on the device
            [2] program    that of its description: played call by call at first, then captured and replayed
            [3] count      gradients, instances, versions: on the host, exact, as in any other wave
            [4] update     what is due, guarded: the device leaves it out where a number is not finite
            [5] later      the ledger is read, losses are read

On a GPU, what a wave costs is its launches and the host's Python; here it is one launch, and one for the updates. What
cannot be captured is played call by call by the player, and the reason is told once (`Captured.reason`).

If a number of a wave was not finite, the host learns of it some waves later. No update was made since then, so it goes
back: versions are set back, and the waves are played again call by call, without padding. That names node and state,
or, where only a row of padding was at fault, makes the updates.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import EngineWarning
from ampnet.events.log import Played, Wave
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.nodes.transform import Parameterised
from ampnet.plan.lot import Lot
from ampnet.plan.padding import Unpaddable, refusal
from ampnet.plan.planner import Planner
from ampnet.state import States
from ampnet.update.guard import guarded
from ampnet.update.recorded import RecordedSteps
from ampnet.update.sums import Sums
from ampnet.update.updater import Updater
from ampnet.wave.arena import Pool
from ampnet.wave.ledger import Ledger
from ampnet.wave.preparation import Preparation, Prepared
from ampnet.wave.programs import Program

if TYPE_CHECKING:
    from ampnet.wave.player import Player

_PROGRAMS = 64
"""Programs kept at most."""


@dataclass(slots=True, eq=False)
class _Played:
    """A wave whose numbers have not been looked at."""

    number: int
    lot: Lot
    updated: list[Updater]


class Captured:
    """The captured waves of one player. See the head of this file."""

    def __init__(self, player: Player, planner: Planner, device: torch.device, refused: str | None = None) -> None:
        """``refused``: why the player's waves cannot be launched as a whole."""
        self._player, self._planner, self.device = player, planner, device
        self.reason: str | None = refused or refusal(planner.sites)
        """Why waves are not captured; None: they are."""
        self.odd: str | None = None
        """Why some of them are not, though others are."""
        self.replayed = self.padded = 0
        """Waves that were replayed as a graph, and those that were padded, replayed or not."""
        self._preparation = Preparation(planner, device)
        self._programs: OrderedDict[tuple[object, ...], Program] = OrderedDict()
        self._pool, self._ledger = Pool(), Ledger(device)
        self._graphs = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._steps = RecordedSteps(self._graphs) if device.type == "cuda" else None
        self._pending: deque[_Played] = deque()
        self._failed: Exception | None = None
        """The error of the last wave, which was left to the player."""
        self._weights: list[list[Tensor]] = []
        derived = [node.name for node in player.updates.trains if node.updater.view is not None]
        if planner._by_turns:
            self.reason = "a node sends by turns, so no two waves are alike"
        elif len(player.planners) > 1:
            self.reason = "several teams of workers share the waves"
        elif derived:
            self.reason = f"node '{derived[0]}' computes with weights that are derived anew for each wave"
        if self.reason is not None:
            self._warn(self.reason)
            return
        for node in player.updates.trains:
            node.updater.dense = True

    def _warn(self, reason: str) -> None:
        if self.device.type == "cuda":
            warnings.warn(
                f"waves are launched operation by operation, not as one captured graph, which is slower: {reason}",
                EngineWarning,
                stacklevel=2,
            )

    # -- [1]

    def _may(self, lot: Lot) -> bool:
        player, planner = self._player, self._planner
        if self.reason is not None or not lot.train or lot.missing or lot.sites is not planner.sites:
            return False
        if planner._loose and any(digest in planner._loose for digest in planner._digests(lot)):
            return False  # the planner names what they wait for
        if player._announce.wants(Played) or player._announce.wants(Wave):
            self.odd = self.odd or "a listener wants every operation (a log, a trace)"
            return False
        return True

    # -- [2]

    def play(self, lot: Lot, behind: Sequence[Lot]) -> bool:
        """Play a wave. False if it must be played call by call."""
        self.look_at_failure()
        if not self._may(lot):
            return False
        self._check_weights()
        try:
            prepared = self._preparation.prepare(lot, behind)
        except Unpaddable as odd:
            if self.odd is None:
                self.odd = f"some waves cannot be padded: {odd}"
                self._warn(self.odd)
            return False
        given, inputs = lot.pieces(), prepared.padded.inputs
        if given is None or not given.keys() >= inputs.keys():
            return False
        payloads = {site: given[site] for site in inputs}
        sums = [node.updater.adding for node in self._player.updates.trains]
        key = (prepared.kind, *(one.old for one in sums))
        program = self._programs.get(key)
        if program is None:
            program = Program(
                prepared.padded,
                payloads,
                lot,
                self._planner,
                self._player.products,
                self._pool,
                self._ledger,
                self._graphs,
            )
            self._programs[key] = program
            while len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        try:
            values = self._run(program, prepared, payloads, sums)
        except Exception as error:
            self._programs.pop(key, None)
            if program.collected:
                raise
            self._failed = error
            return False  # the player meets the same error, and names it; if not, it is one of programs
        self._count(lot, prepared, program, values)
        return True

    def look_at_failure(self) -> None:
        """A wave that failed as a program and not call by call: no other is tried."""
        failed, self._failed = self._failed, None
        if failed is not None:
            said = str(failed).splitlines()
            self.reason = f"padded, it fails with {type(failed).__name__}: {said[0] if said else ''}"
            self._warn(self.reason)

    def _run(
        self, program: Program, prepared: Prepared, payloads: dict[int, list[Tensor]], sums: Sequence[Sums]
    ) -> Tensor:
        for node in self._player.updates.trains:
            node.updater.direct = None
        program.load(prepared.index, payloads, prepared.padded.inputs)
        if program.played == 1 and self.device.type == "cuda":
            program.capture(sums)
            if program.graph is None and self.reason is None:
                self.reason = f"an operation cannot be captured: {program.refused}"
                self._warn(self.reason)
        values = program.play(sums)
        self.padded += 1
        self.replayed += program.graph is not None
        return values

    def _check_weights(self) -> None:
        """Drop all programs if parameters were moved or cast."""
        weights = [node.updater.weights for node in self._player.updates.trains]
        if len(weights) != len(self._weights) or any(a is not b for a, b in zip(weights, self._weights, strict=True)):
            self._weights = weights
            self._programs.clear()

    # -- [3]

    def _count(self, lot: Lot, prepared: Prepared, program: Program, values: Tensor) -> None:
        player, updates = self._player, self._player.updates
        numbers = np.array(lot.numbers)
        player.waves += 1
        played = _Played(self._ledger.waves, lot, [])
        self._pending.append(played)
        first = self._ledger.entered()
        left = Counter(site.name for sites in program.collected for site in sites)
        heard: Counter[str] = Counter()
        counted: set[str] = set()
        due: list[Parameterised] = []
        for sites in program.collected:
            for site in sites:
                node, messages = site.node, prepared.padded.heard[site.number]
                assert isinstance(node, Parameterised)
                if messages:
                    heard[site.name] += messages
                    node.updater.count_messages(messages)
                left[site.name] -= 1
                if left[site.name] or not heard[site.name]:
                    continue
                node.updater.hear([(0, heard[site.name])])
                updates.note_lags(node, node.updater.lags)
                node.updater.count_instances(updates.own(node, numbers))
                counted.add(site.name)
                if node.updater.full():
                    due.append(node)
        late = [node for node in updates.trains if node.name not in counted]
        for node in late:  # they heard nothing of this wave
            node.updater.count_instances(updates.own(node, numbers))
        due += [node for node in late if node.updater.full()]
        if first is None and due:
            first = self._update(due, played)
        self._tell(lot, prepared, program, values)
        if first is not None:
            self._go_back(first)
        while self._pending and self._pending[0].number < self._ledger.sure:
            self._pending.popleft()

    # -- [4]

    def _update(self, due: Sequence[Parameterised], played: _Played) -> int | None:
        """Make updates that are due. Returns the number of the first bad wave, where that has to be known before."""
        updates, before = self._player.updates, [node.updater.version for node in due]
        if all(node.updater.guardable for node in due) and not updates.members:
            with guarded(self._ledger.found, self._steps):
                updates.all_full(due)
        else:
            first = self._ledger.read()
            if first is not None:
                return first
            updates.all_full(due)
        played.updated = [n.updater for n, version in zip(due, before, strict=True) if n.updater.version != version]
        return None

    # -- [5]

    def _tell(self, lot: Lot, prepared: Prepared, program: Program, values: Tensor) -> None:
        """Report losses, and the instances as played."""
        player, at = self._player, 0
        values = values.clone()
        state = States.trusted(("instance",), np.array([[lot.numbers[-1]]]))
        judged = [op for op in program.layout.operations if op.site.kind == "loss"]
        for op, count, many in zip(judged, prepared.padded.counts, program.parts, strict=True):
            node = op.site.node
            assert isinstance(node, Loss)
            mine = values[at : at + many]
            metrics = {name: mine[i + 1 : i + 2] for i, name in enumerate(node.metrics)}
            rows = np.array([count], dtype=np.int64)
            player._tell(Report(node.label, state, True, mine[:1], metrics, rows))
            at += many
        operations, messages = prepared.padded.told
        player.operations += operations
        player.messages += messages
        player.instances += len(lot.numbers)
        player.most = max(player.most, 1)
        player.updates.retired(len(lot.numbers))
        player._over(lot)

    def settle(self) -> None:
        """Wait for all waves, and go back if one of them was bad."""
        first = self._ledger.read() if self._pending else None
        if first is not None:
            self._go_back(first)
        self._pending.clear()

    def _go_back(self, first: int) -> None:
        """Play the waves from a bad one on again, call by call."""
        bad = [played for played in self._pending if played.number >= first]
        self.abandon()
        for played in bad:
            for updater in played.updated:
                updater.version -= 1
        for node in self._player.updates.trains:
            node.updater.reset()  # what was added up is not finite
        for played in bad:
            self._player.play_again(played.lot)
        self.reason = "a number in a row of padding was not finite, though those of all real rows were"
        self._warn(self.reason)

    def abandon(self) -> None:
        """After an error: forget what was launched."""
        self._failed = None
        self._pending.clear()
        self._ledger.clear()
        for program in self._programs.values():
            program.forget()
