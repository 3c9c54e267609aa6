"""Line: which line of the user's model made a value, so that an error or a table can point at it."""

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
    """The line itself, stripped; empty where the source cannot be read."""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"

    def show(self) -> str:
        """The place and the text of the line, for error messages."""
        return f"{self.file}:{self.number}" + (f"\n    {self.text}" if self.text else "")


def here() -> Line:
    """The innermost line that is being run outside of the front end and of torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return Line("?", 0, "")
    file, number = frame.f_code.co_filename, frame.f_lineno
    return Line(file, number, linecache.getline(file, number).strip())
