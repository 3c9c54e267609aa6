"""Where a graph runs."""

from ampnet.runtime.inline import Inline

__all__ = ["Inline"]
