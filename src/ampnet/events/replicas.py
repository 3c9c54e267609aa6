"""Replicas: the load, the staleness and the drift of each replica.

    cell#1   1/2 of the messages   u   u   u     drift 0.6 %  |  u   u     drift 0.5 %  |      u  an update of its own
    cell#2   1/2 of the messages   u  u  u       drift 0.6 %  |  u   u     drift 0.5 %  |      |  a synchronisation

Drift is the distance of a replica's weights from the mean of all, just before a synchronisation, relative to the mean's
norm. It measures the asynchrony among replicas, as staleness measures asynchrony in time. Replicas that share their
parameters, or average gradients instead of weights, do not drift.

The groups of replicas are in the settings of a run's Begin (`groups_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import nan
from typing import Any

from ampnet.errors import DataError
from ampnet.events.log import Begin, Event, Synced, Worked
from ampnet.events.typed import checker, read

KEPT = 400
"""The maximal number of rounds whose drift is kept; of more, every second, fourth, ... is."""


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """The replicas of a node, as the settings of a run name them."""

    node: str
    """The original node: "cell"."""
    members: tuple[str, ...]
    """Their names, in order: "cell#1", "cell#2"."""
    by_instance: bool
    """Whether instance i goes as a whole to member i modulo their number (from 0)."""
    route: str = ""
    """The routing of messages to them."""
    sync: str = ""
    """When they are made equal."""


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """The statistics of one replica."""

    node: str
    """Its name."""
    messages: int
    """Backward messages at it."""
    share: float
    """Its load: its share of the group's backward messages; NaN before the first."""
    updates: int
    """Updates it made."""
    staleness_mean: float
    """Mean staleness of its gradients; NaN without any."""
    staleness_max: int
    """The largest."""
    drift_last: float
    """Drift before the last synchronisation; NaN before the first, and if nothing drifts."""
    drift_mean: float
    """Mean over all synchronisations, likewise."""
    drift_max: float
    """The largest, likewise."""
    seconds: float
    """Time spent in synchronisations."""
    drifts: tuple[tuple[int, float], ...]
    """(synchronisation from 1, drift): of all, or of an even selection; empty if nothing drifts."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The statistics of the replicas of a node."""

    group: str
    """The original node."""
    sync: str
    """When they are made equal."""
    route: str
    """How messages are shared out among them."""
    rounds: int
    """Synchronisations that all of them took part in."""
    replicas: tuple[ReplicaUse, ...]
    """One by one."""

    @property
    def drift_mean(self) -> float:
        """Mean over replicas and synchronisations; NaN if nothing drifts."""
        known = [one.drift_mean for one in self.replicas if one.drift_mean == one.drift_mean]
        return sum(known) / len(known) if known else nan

    @property
    def drift_max(self) -> float:
        """The largest drift; NaN if nothing drifts."""
        return max((one.drift_max for one in self.replicas if one.drift_max == one.drift_max), default=nan)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupUse:
        """Returns the object from the decoded JSON of ``asdict``."""
        return read(cls, data)


@dataclass(slots=True)
class _MemberSums:
    """The sums of one replica."""

    messages: int = 0
    updates: int = 0
    measured: int = 0
    lag: int = 0
    most_lag: int = 0
    rounds: int = 0
    moved: int = 0
    drift: float = 0.0
    most_drift: float = 0.0
    last_drift: float = nan
    seconds: float = 0.0
    each: int = 1
    drifts: list[tuple[int, float]] = field(default_factory=list)

    def synced(self, event: Synced) -> None:
        self.rounds += 1
        self.seconds += event.seconds
        if event.moved:
            self.moved += 1
            self.drift += event.drift
            self.last_drift = event.drift
            self.most_drift = max(self.most_drift, event.drift)
            if self.moved % self.each == 0:
                self.drifts.append((self.rounds, event.drift))
                if len(self.drifts) == KEPT:  # so that memory does not grow with the run
                    self.drifts, self.each = self.drifts[1::2], 2 * self.each


class ReplicaMeter:
    """A listener that adds up the statistics of replicas. It may be read at any time."""

    kinds = (Begin, Worked, Synced)
    """The events it wants."""

    def __init__(self) -> None:
        self._groups: dict[str, ReplicaGroup] = {}
        self._members: dict[str, _MemberSums] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case Worked():
                sums = self._members.get(event.node)
                if sums is not None:
                    sums.messages += event.messages
                    sums.updates += event.updates
                    for lag, messages in event.lags:
                        sums.measured += messages
                        sums.lag += lag * messages
                        if lag > sums.most_lag:
                            sums.most_lag = lag
            case Synced():
                if event.node in self._members:
                    self._members[event.node].synced(event)
            case Begin():
                for group in groups_of(event.settings):
                    self._groups[group.node] = group
                    for member in group.members:
                        self._members.setdefault(member, _MemberSums())
            case _:
                pass

    def groups(self) -> dict[str, GroupUse]:
        """Returns the statistics by original node."""
        return {name: self._group(group) for name, group in self._groups.items()}

    def _group(self, group: ReplicaGroup) -> GroupUse:
        sums = [self._members[member] for member in group.members]
        total = sum(one.messages for one in sums)
        replicas = tuple(_use(name, one, total) for name, one in zip(group.members, sums, strict=True))
        rounds = min((one.rounds for one in sums), default=0)
        return GroupUse(group.node, group.sync, group.route, rounds, replicas)


def _use(name: str, sums: _MemberSums, total: int) -> ReplicaUse:
    return ReplicaUse(
        name,
        sums.messages,
        sums.messages / total if total else nan,
        sums.updates,
        sums.lag / sums.measured if sums.measured else nan,
        sums.most_lag,
        sums.last_drift,
        sums.drift / sums.moved if sums.moved else nan,
        sums.most_drift if sums.moved else nan,
        sums.seconds,
        tuple(sums.drifts),
    )


def groups_of(settings: Mapping[str, Any]) -> list[ReplicaGroup]:
    """Returns the groups in the settings of a run; empty for a run without replicas."""
    names = [item.name for item in fields(ReplicaGroup)]
    try:
        given = checker(list[dict[str, Any]])(settings.get("replicas") or [])
        return [read(ReplicaGroup, {name: one[name] for name in names if name in one}) for one in given]
    except ValueError as error:
        raise DataError(f"the run's settings hold replicas that are none: {error}") from error
