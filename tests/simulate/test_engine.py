"""Engine: events in the order of time; processes that share cores; a virtual clock."""

from __future__ import annotations

import pytest

from ampnet.errors import DataError
from ampnet.simulate import engine
from ampnet.simulate.engine import Computer, EventQueue, Shares


def test_events_come_in_the_order_of_their_time_and_then_in_the_order_they_were_made() -> None:
    events, found = EventQueue(), list[tuple[str, float]]()

    def note(name: str) -> None:
        found.append((name, events.now))
        if name == "b":
            events.after(0.5, note, "d")

    for name, seconds in (("c", 2.0), ("a", 1.0), ("b", 1.0), ("late", 4.0)):
        events.after(seconds, note, name)
    events.run(3.0)
    assert found == [("a", 1.0), ("b", 1.0), ("d", 1.5), ("c", 2.0)]
    assert (events.now, events.past, events.waits) == (3.0, 4, True)


def ends(cores: int, processes: int, *given: tuple[float, float]) -> list[float]:
    """When processes end that begin at a time and need these seconds of a core."""
    events, found = EventQueue(), dict[int, float]()
    computer = Computer(events, cores, processes, 0.0)

    def end(number: int) -> None:
        found[number] = events.now

    for number, (begin, seconds) in enumerate(given):
        events.after(begin, computer.compute, seconds, end, number)
    events.run(100.0)
    assert computer.computing == 0
    return [found[number] for number in range(len(given))]


def test_with_a_core_each_nobody_waits() -> None:
    assert ends(3, 3, (0, 1), (0, 2), (0.5, 3)) == [1, 2, 3.5]


def test_three_processes_on_two_cores() -> None:
    """Each at 2/3 of the speed of a core, until there are two.

    0         1.5       2        the first has its second of a core at 1.5
    [1 s     ]
    [1.5 s   |  ]                then 1 s of 1.5 is done, and the other half second takes half a second
    [1.5 s   |  ]
    """
    assert ends(2, 3, (0, 1), (0, 1.5), (0, 1.5)) == pytest.approx([1.5, 2, 2])


def test_two_processes_on_one_core_that_begin_one_after_the_other() -> None:
    """0    1         3    4      alone, both at half speed, alone
    [1 s |.5 s     ]
         [1 s     |.5 s]"""
    assert ends(1, 2, (0, 2), (1, 1.5)) == pytest.approx([3, 3.5])


def test_neighbours_that_compute_slow_down_a_process() -> None:
    events = EventQueue()
    computer = Computer(events, 3, 3, 0.1)
    found = []
    for _ in range(4):
        found.append(computer.slow())
        computer.compute(1.0, lambda: None)
    assert found == pytest.approx([1.0, 1.1, 1.2, 1.2])  # at most three compute at once


@pytest.mark.parametrize("processes", [2, 3])
def test_after_a_loss_nothing_of_before_is_called(processes: int) -> None:
    """Once a process that was ended still counted as computing until the end that it would have had."""
    events, found = EventQueue(), list[str]()
    computer = Computer(events, 2, processes, 0.0)
    for _ in range(2):
        computer.compute(1.0, found.append, "lost")
    events.run(0.5)
    computer.clear()
    assert computer.computing == 0
    computer.compute(1.0, found.append, "new")
    events.run(1.25)
    assert (found, computer.computing) == ([], 1)
    events.run(2.0)
    assert (found, computer.computing) == (["new"], 0)


def test_shares_of_time_from_the_begin_of_a_measurement() -> None:
    events = EventQueue()
    shares = Shares(events, "idle")
    events.run(1.0)
    shares.enter("busy")
    events.run(2.0)
    shares.begin()
    events.run(3.0)
    shares.enter("idle")
    events.run(3.5)
    assert (shares.seconds("busy"), shares.seconds("idle"), shares.seconds("other")) == (1.0, 0.5, 0.0)


def test_time_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a wave that cost nothing was simulated for ever."""
    monkeypatch.setattr(engine, "MOST", 1000)
    events = EventQueue()

    def again() -> None:
        events.after(0.0, again)

    again()
    with pytest.raises(DataError, match="stands still at 0 seconds"):
        events.run(1.0)
