"""Compiling the kernels: once, into the cache; and what is said where that is not possible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampnet import native
from ampnet.native import build

SHOW = "from ampnet import native; print(native.state().text)"


def shown(cache: Path, **environment: str) -> tuple[str, str]:
    """What `state` says in a fresh process, and what it prints to stderr."""
    inherited = {name: value for name, value in os.environ.items() if name != "AMPNET_NATIVE"}
    env = {**inherited, "XDG_CACHE_HOME": str(cache), **environment}
    ran = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    return ran.stdout.strip(), ran.stderr


@pytest.mark.skipif(not native.state().native, reason="there is no compiler here")
def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    first, told = shown(tmp_path)
    assert first == native.state().text
    assert "compiling kernels for this processor (once, some seconds)" in told
    (made,) = (tmp_path / "ampnet" / "native").iterdir()
    assert made.suffix == ".so"
    written = made.stat().st_mtime_ns
    assert shown(tmp_path) == (first, "")
    assert made.stat().st_mtime_ns == written


def test_without_a_compiler_torch_computes_and_that_is_said(tmp_path: Path) -> None:
    text, told = shown(tmp_path, PATH=str(tmp_path), CXX="")
    assert text == "torch: no C++ compiler was found"
    assert (
        "EngineWarning: kernels are not compiled, so waves are computed with torch: no C++ compiler was found" in told
    )
    assert "install a C++ compiler (g++), or set AMPNET_NATIVE=0" in told


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no room for kernels" >&2\nexit 1\n')
    broken.chmod(0o700)
    text, told = shown(tmp_path, CXX=str(broken))
    assert text == f"torch: {broken} failed: no room for kernels"
    assert "EngineWarning" in told
    assert not list((tmp_path / "ampnet" / "native").iterdir()), "nothing half made is left behind"


def test_it_can_be_switched_off_without_a_warning(tmp_path: Path) -> None:
    assert shown(tmp_path, AMPNET_NATIVE="0") == ("torch: AMPNET_NATIVE=0", "")
    with native.disabled():
        assert native.state() == build.State(False, "torch: native kernels are switched off")
        assert build.kernels() is None
