"""Result: text, plain data and tables of what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet.placement.memory import PROCESS
from ampnet.simulate.machine import Hosts, Machine
from ampnet.simulate.result import WorkerTime, table
from tests.simulate.made import study


def test_a_result_as_text_data_and_table() -> None:
    made = study().simulate(Machine("box", (Hosts(4, memory=PROCESS),)), seconds=1.0)
    assert not made.fits
    assert "DOES NOT FIT" in made.text()
    assert "box" in table([made, made])
    assert replace(made, machine=Machine("big", (Hosts(4),))).fits
    assert made.to_json()["peak_memory"] == made.memory > PROCESS
    assert "125 instances/s" in made.text()
    assert WorkerTime(0, 0.5, 0.2, 0.0, 0.0).idle == pytest.approx(0.3)
