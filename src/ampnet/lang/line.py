"""Line: the line of the user's model that made a value, for error messages and tables."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from dataclasses import dataclass
from types import FrameType

import torch

_OURS = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "nodes") + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    str(contextlib.__file__),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source."""

    file: str
    number: int
    text: str
    """The text of the line, stripped; empty if the source cannot be read."""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"

    def show(self) -> str:
        """Returns file, line number and text, for error messages."""
        return f"{self.file}:{self.number}" + (f"\n    {self.text}" if self.text else "")


def here() -> Line:
    """Returns the innermost line of the call stack outside the front end and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return Line("?", 0, "")
    file, number = frame.f_code.co_filename, frame.f_lineno
    return Line(file, number, linecache.getline(file, number).strip())
