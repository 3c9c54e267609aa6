"""Runtimes: run a graph in this process (`Inline`) or on worker processes (`Processes`)."""

from ampnet.runtime.inline import Inline

__all__ = ["Inline"]
