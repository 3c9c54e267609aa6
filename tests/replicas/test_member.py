"""The token that runs round a group: who has it, who waits, and what comes late. No runtime, no messages: by hand.

first round     1 ──> 2 ──> 3 ──┐     give
                ^               │
second round    1 ──> 2 ──> 3 ──┘     take
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from ampnet import Sync, Update
from ampnet.events.log import Announcer, Synced
from ampnet.nodes import Linear
from ampnet.replicas.group import Replicas, Table
from ampnet.replicas.member import Member, Token
from ampnet.runtime.protocol import token_note, token_of
from tests.replicas.small import SGD


class Group:
    """Replicas of one Linear, and the tokens between them, which nobody delivers but the test."""

    def __init__(self, kind: Any, n: int = 3, every: int = 2, frequency: int = 1, listens: bool = True) -> None:
        names = tuple(f"cell#{i + 1}" for i in range(n))
        self.replicas = Replicas("cell", names, Sync(kind, every), "instance", True, False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            first = Linear(2, 2, dtype=torch.float64)
        self.nodes = [Linear(2, 2, dtype=torch.float64) for _ in names]
        for name, node in zip(names, self.nodes, strict=True):
            node.name = name
            for mine, given in zip(node.updater.parameters, first.updater.parameters, strict=True):
                mine.data = given.data if kind == "shared" else given.data.clone()
            node.make_updater()
            node.updater.adopt(Update(SGD, frequency))
        self.replicas.table = Table.of(self.nodes[0].updater, self.replicas.sync, n)
        self.tokens: deque[Token] = deque()
        self.over: list[int] = []
        self.reasons: list[tuple[int, str]] = []
        self.synced: list[Synced] = []
        self.members = [self._member(i) for i in range(n)]
        if not listens:
            for member in self.members:
                member._announce = Announcer()

    def _member(self, i: int) -> Member:
        def update(reason: str, own: int | None) -> None:
            updater = self.nodes[i].updater
            applied = updater.apply(reason) if own is None else self.members[i].together(own)
            if applied is not None:
                self.reasons.append((i, reason))
                self.members[i].updated()

        return Member(
            self.replicas,
            self.nodes[i],
            send=self.tokens.append,
            update=update,
            over=lambda group, ended: self.over.append(ended),
            announce=Announcer([self.synced.append]),  # type: ignore[list-item]
            worker="here",
            clock=lambda: 0.0,
        )

    def gradient(self, i: int, count: int = 1) -> None:
        """So many gradients come in at a replica, which updates itself when its counter is full."""
        updater, member = self.nodes[i].updater, self.members[i]
        for total in updater.sums:
            total.add_(1.0 + i)
        updater.count_messages(count)
        if updater.due():
            member._update("full", None)
        elif updater.together and updater.full():
            member.poke()

    def pass_on(self) -> Token:
        """Deliver the oldest token."""
        token = self.tokens.popleft()
        self.members[token.to].take(token)
        return token

    def settle(self) -> list[tuple[int, bool]]:
        """Deliver all. Returns (to, taking) of each."""
        seen = []
        while self.tokens:
            token = self.pass_on()
            seen.append((token.to, token.taking))
        return seen

    def equal(self) -> bool:
        first, *others = (node.updater.weights for node in self.nodes)
        return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


ROUND = [(1, False), (2, False), (0, False), (1, True), (2, True), (0, True)]


@pytest.mark.parametrize("kind", ["epoch", "updates", "ring", "shared", "gradients"])
def test_at_the_end_of_a_stream_the_token_runs_round_twice(kind: Any) -> None:
    group = Group(kind, frequency=2)
    group.gradient(0)
    group.gradient(2)
    assert not group.tokens
    for member in group.members:
        member.flush()
    assert group.settle() == ROUND
    assert group.over == [1]
    assert group.equal()
    assert [e.round for e in group.synced] == [1, 1, 1]
    assert len({e.digest for e in group.synced}) == 1
    assert [member.waits() for member in group.members] == [None] * 3


def test_a_replica_that_has_not_heard_of_the_end_keeps_the_token() -> None:
    group = Group("epoch")
    group.members[0].flush()
    assert group.pass_on().to == 1
    assert not group.tokens
    assert group.members[1].waits() == "node 'cell#2' keeps the token until it is ready, in synchronisation 1 of 'cell'"
    assert group.members[0].waits() == "node 'cell#1' waits for the mean, in synchronisation 1 of 'cell'"
    group.members[2].flush()
    assert not group.tokens
    group.members[1].flush()
    assert group.settle() == ROUND[1:]
    assert group.over == [1]


def test_updates_wait_between_giving_and_taking_and_come_late() -> None:
    group = Group("ring", every=1)
    group.gradient(0)  # its first update starts the round
    assert group.tokens
    group.gradient(0)
    group.gradient(0)
    assert group.reasons == [(0, "full")]
    assert group.nodes[0].updater.counter == 2
    assert group.nodes[0].updater.room() is None
    group.pass_on()
    group.gradient(1)
    group.pass_on()
    group.pass_on()  # the first takes the mean, and catches up
    assert group.reasons == [(0, "full"), (0, "late")]
    group.pass_on()
    assert group.reasons[-1] == (1, "late")
    group.settle()
    assert [e.updates for e in group.synced[:3]] == [1, 0, 0]
    assert [e.round for e in group.synced] == [1, 1, 1, 2, 2, 2]  # the late update of the first was due for a round


def test_a_ring_takes_what_each_has_and_updates_waits_for_all() -> None:
    ring, updates = Group("ring", every=2), Group("updates", every=2)
    for group in (ring, updates):
        group.gradient(0)
        group.gradient(1)
        assert not group.tokens
        group.gradient(0)
    assert ring.settle() == ROUND
    updates.pass_on()
    assert not updates.tokens  # the second has made one update of two
    updates.gradient(1)
    updates.pass_on()
    assert updates.members[2].waits() is not None
    updates.gradient(2)
    updates.gradient(2)
    assert updates.settle() == ROUND[2:]
    assert [e.updates for e in updates.synced] == [2, 2, 2]
    assert updates.over == []


def test_a_replica_that_will_never_be_ready_hands_the_token_on_when_the_stream_ends() -> None:
    group = Group("updates", every=2)
    group.gradient(0)
    group.gradient(0)
    group.pass_on()
    assert not group.tokens
    for member in group.members:
        member.flush()  # the first is waiting: its flush waits as well
    assert group.settle() == ROUND[1:] + ROUND
    assert group.over == [1]
    assert group.equal()


@pytest.mark.parametrize("kind", ["epoch", "updates", "gradients"])
@pytest.mark.parametrize("streams", [2, 3, 4])
def test_streams_that_end_while_a_replica_waits_are_all_counted(kind: Any, streams: int) -> None:
    """Once, a replica that waited remembered one of them: the controller then waited for the others for ever."""
    group = Group(kind, every=1)
    group.gradient(0)
    for _ in range(streams):
        for member in group.members:
            member.flush()
    group.settle()
    assert group.over[-1] == streams
    assert group.over == sorted(group.over)
    assert group.equal()


def test_gradients_are_given_when_the_first_has_enough_and_taken_by_all_at_once() -> None:
    group = Group("gradients", frequency=2)
    start = group.nodes[0].updater.weights[0].clone()
    group.gradient(0, 2)
    assert group.tokens
    assert group.nodes[0].updater.counter == 0
    group.pass_on()
    assert not group.tokens
    group.gradient(1, 2)
    group.gradient(0)  # comes after it gave: for the next round
    group.pass_on()
    group.gradient(2, 3)
    assert group.reasons == []
    group.settle()
    assert group.reasons == [(0, "together"), (1, "together"), (2, "together")]
    assert group.equal()
    # 1 + 2 + 3 in the sums, of seven gradients
    assert torch.allclose(group.nodes[1].updater.weights[0], start - 0.05 * 6 / 7)
    assert group.nodes[0].updater.counter == 1
    assert [node.updater.version for node in group.nodes] == [1, 1, 1]
    assert [e.moved for e in group.synced] == [False] * 3


def test_a_round_without_a_gradient_changes_nothing() -> None:
    group = Group("gradients")
    before = group.nodes[0].updater.weights[0].clone()
    for member in group.members:
        member.flush()
    group.settle()
    assert group.over == [1]
    assert torch.equal(group.nodes[2].updater.weights[0], before)
    assert [node.updater.version for node in group.nodes] == [0, 0, 0]


def test_shared_weights_are_told_alike_though_they_go_on_changing() -> None:
    group = Group("shared")
    for member in group.members:
        member.flush()
    for _ in range(3):
        group.pass_on()
    group.gradient(0)  # it has taken part, and goes on
    assert group.reasons == [(0, "full")]
    group.settle()
    assert len({e.digest for e in group.synced}) == 1
    assert all(e.drift == 0 and not e.moved for e in group.synced)


def test_after_an_error_nothing_is_under_way_and_rounds_count_anew() -> None:
    group = Group("ring", every=1)
    group.gradient(0)
    group.settle()
    group.gradient(0)
    group.pass_on()
    for member in group.members:
        member.flush()
    group.tokens.clear()
    for member in group.members:
        member.reset()
        assert member.waits() is None
        assert not member.node.updater.waiting
    group.over.clear()
    for member in group.members:
        member.flush()
    group.settle()
    assert group.over == [1]
    assert [e.round for e in group.synced] == [1, 1, 1, 1, 1, 1]


def test_nobody_who_listens_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampnet.replicas.member.digest", lambda updater: pytest.fail("nobody asked"))
    monkeypatch.setattr(Table, "drift", lambda table, updater: pytest.fail("nobody asked"))
    group = Group("epoch", listens=False)
    group.gradient(1)
    for member in group.members:
        member.flush()
    group.settle()
    assert group.equal()


def test_a_token_goes_over_the_wire_whole() -> None:
    token = Token("cell", 2, 7, True, 3, True, 2**32 - 1)
    note = token_note(token)
    assert token_of(note) == token
