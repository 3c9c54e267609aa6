"""Fixtures of several files here: a file asks for them by ``pytestmark = pytest.mark.usefixtures(...)``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def float64() -> Iterator[None]:
    """Seeded random numbers, and float64 as the default dtype: gradients are compared exactly."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
