"""Simulations of tests have no jitter, so that times can be computed by hand."""

from __future__ import annotations

import pytest

from ampnet.simulate import simulation


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "JITTER", 0.0)
