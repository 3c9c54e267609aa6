"""The comparison of predictions with labelled inference runs, on a few instances."""

from __future__ import annotations

import pytest

from bench import predict


def test_every_row_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(predict.MODELS, "tutorial", lambda: predict._trees(predict.Tutorial(), 10, 60))
    found = predict.measure("tutorial", 1)
    assert set(found["ratio"]) == {"samples", "instances"}
    assert all(speed > 0 for speed in found["instances a second"].values())
