"""A good log is tampered with: staleness and versions. New weights from other replicas count like an update."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet.events import Backward, Event, Forward, Synced, check, staleness_of
from tests.events.replicated import Script
from tests.events.tamper import at, broken, changed, good


def test_p7_a_false_staleness() -> None:
    position = at(Backward, "linear1")
    event = good()[position]
    assert isinstance(event, Backward)
    wrong = tuple((lag + 1, messages) for lag, messages in event.lags)
    broken(changed(position, lags=wrong), "P7", "node 'linear1'", event.received.describe())
    broken(changed(position, lags=()), "P7", "node 'linear1'", "staleness {}")


@pytest.mark.parametrize("kind", [Forward, Backward])
def test_p7_a_false_version(kind: type[Forward] | type[Backward]) -> None:
    position = at(kind, "linear2")
    event = good()[position]
    assert isinstance(event, Forward | Backward)
    assert event.version is not None
    broken(changed(position, version=event.version + 1), "P7", "node 'linear2'", f"says version {event.version + 1}")


def synchronised(sync: str = "updates") -> list[Event]:
    """Two instances, and a synchronisation while the second is out."""
    script = Script(sync=sync)
    script.begin()
    script.pump(0, 2)
    script.forward(0)
    script.forward(2)
    script.backward(0)
    script.round()
    script.backward(2)
    script.update("cell#1", 2)
    script.answer(0)
    script.answer(2)
    script.retire(0, 2)
    return script.end()


def test_new_weights_count_like_an_update() -> None:
    assert check(synchronised()) == []
    assert staleness_of(synchronised())["cell#1"].histogram == {0: 1, 1: 1}
    assert check(synchronised("shared")) == []
    assert staleness_of(synchronised("shared"))["cell#1"].histogram == {0: 2}


def test_a_replica_that_forgets_its_new_weights() -> None:
    events = synchronised()
    last = max(i for i, e in enumerate(events) if isinstance(e, Backward))
    (found,) = check([replace(e, lags=((0, 1),)) if i == last else e for i, e in enumerate(events)])  # type: ignore[call-arg]
    assert "node 'cell#1' reports staleness {0: 1} for (instance=2, t=0); the log has {1: 1}" in found.sentence
    still = [replace(e, moved=False, version=e.version - 1) if isinstance(e, Synced) else e for e in events]
    found = check(still)[0]
    assert found.promise == "P7"
    assert "node 'cell#1' says version 1 at (instance=2, t=0); by its updates it is 0" in found.sentence


def test_where_weights_are_shared_the_updates_of_all_count() -> None:
    """An update of the first replica, while a message is out at the second."""
    script = Script(sync="shared")
    script.begin()
    script.pump(0, 1, 2)
    for instance in (0, 1, 2):
        script.forward(instance)
    script.backward(0)
    script.backward(2)
    script.update("cell#1", 2)
    script.backward(1)
    script.update("cell#2", 1, "flush")
    for instance in (0, 1, 2):
        script.answer(instance)
    script.retire(0, 1, 2)
    script.round()
    events = script.end()
    assert check(events) == []
    assert staleness_of(events)["cell#2"].histogram == {1: 1}
    last = max(i for i, e in enumerate(events) if isinstance(e, Backward))
    (found,) = check([replace(e, lags=((0, 1),)) if i == last else e for i, e in enumerate(events)])  # type: ignore[call-arg]
    assert "node 'cell#2' reports staleness {0: 1} for (instance=1, t=0); the log has {1: 1}" in found.sentence
