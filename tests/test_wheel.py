"""The wheel: it builds without a network, holds every file of the package, and what it installs starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ampnet._version import __version__

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


def run(*command: str, where: Path, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_wheel_builds_installs_and_starts(tmp_path: Path) -> None:
    copy, target = tmp_path / "copy", tmp_path / "target"
    copy.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), ".", where=copy)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"ampnet-{__version__}-py3-none-any.whl"

    files = {str(p.relative_to(copy / "src")) for p in (copy / "src" / "ampnet").rglob("*") if p.is_file()}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert files <= held, f"not in the wheel (package-data of pyproject.toml?): {sorted(files - held)}"
    assert not {name for name in held - files if not name.startswith(f"ampnet-{__version__}.dist-info/")}

    run(*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel), where=tmp_path)
    here = {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(str(target / "bin" / "ampnet"), "--version", where=tmp_path, **here) == f"ampnet {__version__}\n"
    where = run("-c", "import ampnet; print(ampnet.__file__); print(ampnet.Model)", where=tmp_path, **here)
    assert where.startswith(str(target))
