"""Boxes: what an event becomes in a picture; which stretch of a run is shown."""

from __future__ import annotations

import numpy as np

from ampnet.events.boxes import FEW, Box, Window, around, box_of, boxes_of, few, of_instances, steady, whole
from ampnet.events.log import Backward, Forward, Rest, Synced, Updated
from ampnet.state import States
from tests.events.pipeline import pipeline


def box(start: float, seconds: float = 1.0, *, worker: str = "w", train: bool = True, kind: str = "forward") -> Box:
    return Box(worker, "n", kind, start, seconds, train, (int(start),), 0, 1, 1, None, None)


def test_batches_updates_and_synchronisations_are_boxes() -> None:
    states = States.of(instance=[9, 7, 9], t=[0, 1, 2])
    forward = box_of(Forward(12.0, 0.5, "w0", "cell", 0, False, states, (), (), 30, 4), 10.0)
    assert forward == Box("w0", "cell", "forward", 2.0, 0.5, False, (7, 9), 0, 3, 30, 4, None)
    backward = box_of(Backward(12.0, 0.5, "w0", "cell", 0, states, (), 30, 4, 3, ((1, 1), (4, 2))), 10.0)
    assert backward == Box("w0", "cell", "backward", 2.0, 0.5, True, (7, 9), 0, 3, 30, 4, 3.0)
    update = box_of(Updated(12.0, 0.5, "w0", "cell", 5, 8, "full", "messages", 8), 10.0)
    assert update == Box("w0", "cell", "update", 2.0, 0.5, True, (), 0, 8, 0, 5, None)
    sync = box_of(Synced(12.0, 0.5, "w0", "cell#2", "cell", 3, 6, True, 4, 0.01, 99), 10.0)
    assert sync == Box("w0", "cell#2", "sync", 2.0, 0.5, True, (), 0, 4, 0, 6, None)
    assert box_of(Rest(1.0, {})) is None


def test_of_many_instances_a_few_are_listed() -> None:
    assert few(np.arange(40, 0, -1)) == (list(range(1, FEW + 1)), 40 - FEW)
    assert few(np.repeat(np.arange(30), 50)) == (list(range(FEW)), 30 - FEW)
    states = States.of(instance=np.arange(100, 140))
    many = box_of(Forward(0.0, 1.0, "w0", "cell", 0, True, states, (), (), 40, None))
    assert many is not None
    assert many.concerns(100, 100)
    assert many.concerns(130, 130), "it is not listed, but may be there"
    assert not many.concerns(1, 99)


def test_boxes_are_in_order_and_count_from_the_first_event() -> None:
    events = pipeline()
    boxes = boxes_of(events)
    assert boxes[0].start == 0.0
    assert boxes == sorted(boxes, key=lambda b: b.start)
    assert len(boxes) == sum(isinstance(e, Forward | Backward | Updated) for e in events)


def test_a_window_cuts_boxes_and_knows_how_busy_workers_were() -> None:
    boxes = [box(0.0), box(1.0, worker="v"), box(2.0), box(5.0)]
    window = Window(0.5, 2.5)
    assert window.cut(boxes) == boxes[:3]
    assert window.busy(window.cut(boxes)) == {"w": 0.5, "v": 0.5}
    assert Window(3.0, 5.0).cut(boxes) == []


def test_the_steady_state_has_60_to_150_boxes() -> None:
    for workers in (1, 2, 4, 16):
        boxes = boxes_of(pipeline(workers, instances=200, keys=2 * workers))
        shown = steady(boxes).cut(boxes)
        assert 55 <= len(shown) <= 150 + 2 * workers, "some more reach into it at its ends"
        assert {b.kind for b in shown} == {"forward", "backward", "update"}
        assert {b.worker for b in shown} == {b.worker for b in boxes}


def test_the_steady_state_is_not_the_beginning_nor_a_break() -> None:
    """Two runs with a long break between them, and one very slow stretch: none of them is typical."""
    early, late = boxes_of(pipeline()), boxes_of(pipeline())
    span = whole(early).stop
    boxes = [*early, *(_later(b, span + 60.0) for b in late)]
    window = steady(boxes)
    assert window.start > 0.01
    assert window.seconds < 1.0


def _later(b: Box, seconds: float) -> Box:
    return box(b.start + seconds, b.seconds, worker=b.worker, kind=b.kind)


def test_the_steady_state_is_training_if_there_is_any() -> None:
    boxes = [box(float(i), train=i < 500) for i in range(2000)]
    assert all(b.train for b in steady(boxes).cut(boxes))
    only = [box(float(i), train=False) for i in range(2000)]
    assert 55 <= len(steady(only).cut(only)) <= 150


def test_a_short_run_is_shown_as_a_whole() -> None:
    boxes = [box(float(i)) for i in range(20)]
    assert steady(boxes) == whole(boxes) == Window(0.0, 20.0)
    assert steady([]) == Window(0.0, 0.0)


def test_the_window_of_instances_is_the_time_they_were_under_way() -> None:
    boxes = boxes_of(pipeline())
    window = of_instances(boxes, 30, 31)
    mine = [b for b in boxes if set(b.instances) & {30, 31}]
    assert window == Window(min(b.start for b in mine), max(b.stop for b in mine))
    assert of_instances(boxes, 5000, 5001) == Window(0.0, 0.0)


def test_around_a_window_are_its_neighbours_and_what_reaches_into_it() -> None:
    boxes = [box(0.0, 900.0, worker="slow"), *(box(float(i)) for i in range(1, 1000))]
    near = around(boxes, Window(500.0, 510.0), 51)
    assert near[0].worker == "slow"
    assert {b.start for b in near[1:]} >= set(range(500, 511))
    assert 40 <= len(near) <= 52
