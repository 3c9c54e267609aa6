"""Machines that leave and join, as raylets of this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pages import ROOT

pytest.importorskip("ray")


@pytest.mark.parametrize("replicas", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_training_goes_on_with_fewer_machines_and_takes_in_a_new_one(replicas: str) -> None:
    """In parts, and in replicas; see `tests.runtime.cluster.elastic`."""
    command = [sys.executable, "-m", "tests.runtime.cluster.elastic", replicas]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "right"
