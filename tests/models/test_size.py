"""The models are short: that is what the language is for."""

from __future__ import annotations

import inspect

import pytest

from ampnet import models


@pytest.mark.parametrize("name", models.__all__)
def test_a_model_is_written_in_less_than_forty_lines(name: str) -> None:
    assert len(inspect.getsource(getattr(models, name)).splitlines()) < 40
