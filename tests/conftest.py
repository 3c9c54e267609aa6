"""Every test: one torch thread, and (promise P5) every inline runtime it made is at rest when it ends."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from ampnet.runtime.inline import Inline
from ampnet.testing import assert_at_rest

torch.set_num_threads(1)
settings.register_profile("ampnet", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ampnet")


@pytest.fixture(autouse=True)
def _at_rest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[weakref.ref[Inline]] = []
    original = Inline.__init__

    def init(self: Inline, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        made.append(weakref.ref(self))

    monkeypatch.setattr(Inline, "__init__", init)
    yield
    for ref in made:
        runtime = ref()
        if runtime is not None:
            assert_at_rest(runtime)
