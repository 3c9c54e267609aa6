"""Recording: the readers of the events of a run accept those of a simulation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ampnet.events.gantt import gantt
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.record import Recorder
from ampnet.events.run_file import read_run
from ampnet.simulate import recorder as recorders
from ampnet.simulate.machine import Machine
from ampnet.simulate.recorder import Recording
from tests.simulate.made import HOSTS, STAGES, costs, machine, simulation


@pytest.mark.parametrize("hosts", [HOSTS, None])
@pytest.mark.parametrize("schedule", ["backward-first", "fifo"])
def test_a_trace_and_a_gantt_chart(hosts: dict[str, int] | None, schedule: str, tmp_path: Path) -> None:
    recorder, writer = Recorder(), PerfettoWriter(tmp_path / "run.json")
    recording = Recording([recorder, writer], 0.2, 0.7, {"workload": "made up", "engine": "waves"})
    run = simulation(
        costs(STAGES), machine(), hosts, max_active_keys=3, wave_size=1, schedule=schedule, recorder=recording
    )
    run.run(1.0)
    recording.close()
    writer.close()
    found = recorder.record()
    gantt(found, tmp_path / "run.html", title="made up")
    again = read_run(tmp_path / "run.json")
    for boxes in (found.boxes, again.boxes):
        workers = {box.worker for box in boxes}
        assert workers == ({"worker0"} if hosts is None else {"worker0", "worker1"})
        times = [box.seconds for box in boxes if box.node.startswith("linear2") and box.kind == "forward"]
        assert len(times) > 50
        assert times == pytest.approx([0.002] * len(times), abs=1e-5)
        waves = [box.wave for box in boxes if box.node.startswith("linear2") and box.kind == "forward"]
        assert len(set(waves)) == len(waves)  # once they were numbered from 1 again after the warm-up


def test_on_shared_cores_operations_are_as_long_as_they_take() -> None:
    """Three replicas and the controller on one core: a stretch takes up to three times as long."""
    recorder = Recorder()
    recording = Recording([recorder], 0.2, 0.7, {})
    where: Machine = machine(1)
    run = simulation(costs(STAGES), where, replicas=3, max_active_keys=6, recorder=recording)
    run.run(1.0)
    recording.close()
    boxes = [box for box in recorder.record().boxes if box.worker == "worker1"]
    boxes.sort(key=lambda box: box.start)
    assert sum(box.seconds for box in boxes) == pytest.approx(0.5, rel=0.1)
    for box, following in pairwise(boxes):
        assert box.stop <= following.start + 1e-9


def test_what_is_recorded_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MOST", 30)
    recorder = Recorder()
    recording = Recording([recorder], 0.0, 1.0, {})
    simulation(costs(STAGES), machine(), HOSTS, max_active_keys=2, recorder=recording).run(1.0)
    recording.close()
    assert 30 < sum(box.kind == "forward" or box.kind == "backward" for box in recorder.record().boxes) < 50
