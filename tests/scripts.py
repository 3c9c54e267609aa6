"""Scripts of the examples folder, imported as modules so that tests can call them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def script(name: str) -> Any:
    """The module of ``examples/NAME/NAME.py``."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module
