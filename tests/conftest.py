"""Every test: one torch thread, and (promise P5) every run of the inline runtime ends at rest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import is_hypothesis_test, settings

from ampnet.instance import StreamStats
from ampnet.runtime.inline import Inline
from ampnet.testing import assert_at_rest
from tests import fuzz

torch.set_num_threads(1)
settings.register_profile("ampnet", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True, derandomize=False, database=None)
FUZZING = fuzz.VARIABLE in os.environ
settings.load_profile("fuzz" if FUZZING else "ampnet")


LONG = (
    "tests/runtime/cluster",
    "tests/bench/",
    "tests/wave/test_everything_plays.py",
    "tests/lang/test_nesting.py",
    "tests/test_gallery.py",
    "tests/test_promises.py",
    "tests/cli/",
    "tests/runtime/",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_readme.py",
    "tests/test_tutorial.py",
    "tests/test_wheel.py",
)
"""Files that take half a minute or more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a fuzzing run (`tests.fuzz`), only tests that draw examples. Long files come first: each goes to one process,
    and none of the processes is to wait for the last."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if FUZZING:
        items[:] = [
            item for item in items if item.get_closest_marker("fuzz") or is_hypothesis_test(getattr(item, "obj", None))
        ]


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests on workers do not care how well nodes are placed."""
    monkeypatch.setattr("ampnet.placement.trial.SECONDS", 0.1)


@pytest.fixture(autouse=True)
def _at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of every run, before anything is closed: nothing is held."""
    original = Inline.run

    def run(self: Inline, *args: Any, **kwargs: Any) -> list[StreamStats]:
        out = original(self, *args, **kwargs)
        assert_at_rest(self)
        return out

    monkeypatch.setattr(Inline, "run", run)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT is heard. In a process that a shell started in the background it is ignored, and so in its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
