"""What machine a result is from."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe() -> dict[str, str | int]:
    """Processor, cores, versions, load."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    found: dict[str, str | int] = {
        "processor": model,
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": f"{os.getloadavg()[0]:.2f}",
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found
