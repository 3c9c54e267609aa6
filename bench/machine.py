"""What machine and what code a result is of: processor, cores, versions of the frameworks, commit.

The commit is the last one that changed the code that is measured or that measures: results, pages and tables made from
results do not count, so that files which are committed one after the other name the same one. Where there is no git
(a copy of the checkout), ``AMPNET_COMMIT`` names it: see `bench.paper.commit`.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

FRAMEWORKS = {"torch_geometric": "torch-geometric", "dgl": "dgl", "jax": "jax", "jaxlib": "jaxlib", "jraph": "jraph",
              "optax": "optax"}  # fmt: skip
"""By the name in results: the distribution. Those that are not installed have no entry in a result."""
CODE = ("src", "bench", ":!bench/results", ":!bench/paper", ":!bench/readme.py", ":!bench/claims.py")


def describe() -> dict[str, str | int]:
    """Processor, cores, versions, load, commit."""
    found: dict[str, str | int] = {
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "usable_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions(),
        "load": f"{os.getloadavg()[0]:.2f}",
        "commit": code(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def processor() -> str:
    """The name of the processor, with family and model where the system tells: a name like "AMD EPYC" says little."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    said: dict[str, str] = {}
    for line in info.read_text().splitlines():
        name, found, value = line.partition(":")
        if found:
            said.setdefault(name.strip(), value.strip())
    name = said.get("model name") or platform.machine()
    numbers = [f"{what} {said[key]}" for what, key in (("family", "cpu family"), ("model", "model")) if key in said]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def versions() -> dict[str, str]:
    """Of the frameworks that are installed."""
    out = {}
    for name, distribution in FRAMEWORKS.items():
        try:
            out[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return out


def code() -> str:
    """The commit of `CODE`."""
    from bench.paper.commit import commit  # it needs the rows of the bench, which a turn's process has no use for

    return commit(code=CODE)
