"""Build: compile the kernels for this processor, once, and load them.

    sources + compiler + flags + processor ──digest──> ~/.cache/ampnet/native/DIGEST.so ──> loaded with ctypes

The compiler is `$CXX`, `c++` or `g++`. It takes some seconds, the first time only. The file is written aside and
renamed, so processes that compile at the same time do not disturb each other. Nothing of torch or Python is linked, so
one file serves all their versions.

`$AMPNET_NATIVE=0` computes with torch instead. Where there is no compiler, or it fails, the first user warns, and
`state` says so in the results of a run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ampnet.errors import EngineWarning

SOURCES = Path(__file__).parent / "source"
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno")
_NAMES = {64: "avx512", 32: "avx2", 16: "128 bits"}
_PATIENCE = 300
"""Seconds after which a compiler is given up."""


@dataclass(frozen=True, slots=True)
class State:
    """What computes on the CPU, and why."""

    native: bool
    text: str
    """Like "native (avx512)" or "torch: no C++ compiler was found"."""


class Kernels:
    """The loaded kernels."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.run = library.ampnet_run
        self.run.argtypes, self.run.restype = (ctypes.c_void_p, ctypes.c_int64), None
        self.begin_wave = library.ampnet_begin_wave
        self.begin_wave.argtypes, self.begin_wave.restype = (), None
        library.ampnet_bytes.restype = ctypes.c_int64
        self.bytes: int = library.ampnet_bytes()
        """Size of the vectors that it was compiled for."""
        self._library = library

    def address(self, name: str) -> int:
        """The address of a function."""
        found = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert found is not None
        return found


_loaded: tuple[Kernels | None, State] | None = None
_off = False


def kernels() -> Kernels | None:
    """The kernels; compiled and loaded at the first call. None: compute with torch."""
    global _loaded
    if _off:
        return None
    if _loaded is None:
        _loaded = _load()
        found, told = _loaded
        if found is None and os.environ.get("AMPNET_NATIVE") != "0":
            warnings.warn(
                f"kernels are not compiled, so waves are computed with {told.text}. Remedy: install a C++ compiler "
                f"(g++), or set AMPNET_NATIVE=0 to compute with torch and not see this",
                EngineWarning,
                stacklevel=2,
            )
    return _loaded[0]


def state() -> State:
    """What computes on the CPU."""
    if _off:
        return State(False, "torch: native kernels are switched off")
    kernels()
    assert _loaded is not None
    return _loaded[1]


@contextmanager
def disabled() -> Iterator[None]:
    """Context: compute with torch. For tests and comparisons."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


def _load() -> tuple[Kernels | None, State]:
    if os.environ.get("AMPNET_NATIVE") == "0":
        return None, State(False, "torch: AMPNET_NATIVE=0")
    compiler = _compiler()
    if compiler is None:
        return None, State(False, "torch: no C++ compiler was found")
    try:
        found = Kernels(_compiled(compiler))
    except (OSError, subprocess.SubprocessError) as error:
        return None, State(False, f"torch: {compiler} failed: {_last_line(error)}")
    return found, State(True, f"native ({_NAMES.get(found.bytes, found.bytes)})")


def _compiler() -> str | None:
    return next((path for name in (os.environ.get("CXX"), "c++", "g++") if name and (path := shutil.which(name))), None)


def _compiled(compiler: str) -> Path:
    """The compiled file, made if it is not there."""
    flags = [*FLAGS, "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"]
    folder = _folder()
    path = folder / f"{_digest(compiler, flags)}.so"
    if path.is_file():
        return path
    print("ampnet: compiling kernels for this processor (once, some seconds)", file=sys.stderr, flush=True)
    handle, aside = tempfile.mkstemp(".so", dir=folder)
    os.close(handle)
    try:
        command = [compiler, *flags, str(SOURCES / "kernels.cpp"), "-o", aside]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)
    return path


def _folder() -> Path:
    """A folder that only this user can write to."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "ampnet" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="ampnet-native-"))  # no cache: compiled for this process alone


def _digest(compiler: str, flags: list[str]) -> str:
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=_PATIENCE).stdout
    joined = hashlib.sha256(version + "\0".join([compiler, *flags]).encode() + _processor())
    for source in sorted(SOURCES.iterdir()):
        joined.update(source.name.encode() + source.read_bytes())
    return joined.hexdigest()[:32]


def _processor() -> bytes:
    """What the meaning of ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    kinds = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(dict.fromkeys(line for line in lines if line.startswith(kinds)))


def _last_line(error: Exception) -> str:
    printed = getattr(error, "stderr", None) or str(error)
    text = printed.decode() if isinstance(printed, bytes) else printed
    return (text.strip().splitlines() or ["no message"])[-1]
