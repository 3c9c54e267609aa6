"""Which code a result is of: the last commit that changed the code that trains.

    AMPNET_COMMIT, if it is set ──> else git ──> else the file COMMIT of the checkout ──> else "unknown"

Commits that change only documents, results or the tables of this package leave it as it is: a result of the code
before them is a result of the code after them. Changes that are not committed add a digest: ``c191c64+5f3a9c02``.

A plain copy has no git. ``AMPNET_COMMIT=$(python -m bench.paper commit)``, made where git is, names the code there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

from bench.rows import CHECKOUT

VARIABLE, FILE, UNKNOWN = "AMPNET_COMMIT", "COMMIT", "unknown"
CODE = ("src", "bench/peers", "bench/batch.py", "bench/paper/baseline.py", "bench/paper/execute.py")
"""The code that trains."""


@cache
def commit(checkout: Path = CHECKOUT, code: tuple[str, ...] = CODE) -> str:
    """Returns the name of the code in a checkout; ``code`` are paths of it, as git takes them."""
    given = os.environ.get(VARIABLE, "").strip()
    return given or _of_git(checkout, code) or _of_file(checkout) or UNKNOWN


def _of_git(checkout: Path, code: tuple[str, ...]) -> str:
    """Returns the last commit of the code, and a digest of changes since; empty without git."""
    if not (checkout / ".git").exists():  # a copy inside of another repository
        return ""
    try:
        last = _git(checkout, "log", "-1", "--format=%h", "--", *code).strip()
        changes = _git(checkout, "diff", "HEAD", "--", *code)
        new = [
            name for name in _git(checkout, "ls-files", "-zo", "--exclude-standard", "--", *code).split("\0") if name
        ]
        digest = hashlib.sha256(changes.encode())
        for name in new:
            digest.update(name.encode() + (checkout / name).read_bytes())
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{last}+{digest.hexdigest()[:8]}" if changes or new else last


def _git(checkout: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=checkout, capture_output=True, encoding="utf-8", errors="replace", check=True
    )
    return done.stdout


def _of_file(checkout: Path) -> str:
    try:
        return (checkout / FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
