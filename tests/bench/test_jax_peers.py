"""Peers in JAX, in a process of their own; and how peers of other frameworks are found, skipped and put on cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.peers.foreign import Foreign, missing

from bench import cores

WITHOUT = missing(("jax",))
HERE = Path(__file__)


@pytest.mark.timeout(600)  # programs are compiled, half a minute of one core
@pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))
def test_peers_in_jax_compute_what_those_in_torch_do() -> None:
    """All of `jax_peers.py`."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE.with_name("jax_peers.py"))]
    done = subprocess.run(words, capture_output=True, text=True, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_a_process_that_measures_torch_has_no_jax() -> None:
    code = "import sys, bench.turn; raise SystemExit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_process_is_put_on_as_many_cores_as_it_is_given() -> None:
    code = "from bench import cores; raise SystemExit(len(cores.keep(1)) != 1)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert sorted(cores.quietest({0})) == [0]


def test_what_cannot_be_imported_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(("json",)) is None
    assert missing(("json", "no_such_framework")) == "no_such_framework is not installed"
    monkeypatch.setattr("bench.peers.foreign.FRAGILE", ("antigravity_of_bench",))
    monkeypatch.setattr("bench.peers.foreign.importlib.util.find_spec", lambda name: True)
    assert missing(("antigravity_of_bench",)) == (
        "antigravity_of_bench is installed, but cannot be imported: "
        "ModuleNotFoundError: No module named 'antigravity_of_bench'"
    )
    assert Foreign("json:JSONDecoder").load().__name__ == "JSONDecoder"
