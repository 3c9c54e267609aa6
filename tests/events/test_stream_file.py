"""Files that grow during a run, on a disk that is full at every possible byte."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ampnet.errors import OutputWarning
from ampnet.events import stream_file
from ampnet.events.log import Event, LogWriter, read_log
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.run_file import read_run
from ampnet.events.stream_file import StreamFile
from tests.events.pipeline import pipeline

Fill = Callable[[int], None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """A disk with room for so many bytes in a file."""
    write = os.write

    def full(room: int) -> None:
        def some(descriptor: int, data: bytes) -> int:
            there = os.fstat(descriptor).st_size
            if there >= room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, bytes(data)[: room - there])

        monkeypatch.setattr(os, "write", some)
        monkeypatch.setattr(stream_file, "CHUNK", 64)

    return full


def _write_all(file: StreamFile, lines: list[str]) -> None:
    for line in lines:
        file.write(line)
    file.finish()


def _record(writer: LogWriter | PerfettoWriter, events: list[Event]) -> None:
    for event in events:
        writer(event)
    writer.close()


def test_whole_lines_that_had_room_are_kept(tmp_path: Path, disk: Fill) -> None:
    lines = [f"line {n:03d}\n" for n in range(40)]
    for room in range(0, 360, 7):
        disk(room)
        path = tmp_path / f"{room}.txt"
        file = StreamFile(path)
        with pytest.warns(OutputWarning, match=f"{path}: No space left on device"):
            _write_all(file, lines)
        assert file.fault == "No space left on device"
        assert path.read_text() == "".join(lines)[: room - room % 9]
    assert not [one for one in tmp_path.iterdir() if ".part" in one.name]


def test_a_log_that_had_no_room_ends_with_a_whole_event(tmp_path: Path, disk: Fill) -> None:
    events, path = pipeline(), tmp_path / "run.jsonl"
    disk(20_000)
    writer = LogWriter(path)
    with pytest.warns(OutputWarning, match="run.jsonl"):
        _record(writer, events)
    assert writer.fault is not None
    kept = list(read_log(path))
    assert kept == events[: len(kept)]
    assert 50 < len(kept) < len(events)
    assert read_run(path).incomplete.startswith("the log ends before its run does")


def test_a_trace_that_had_no_room_has_its_totals(tmp_path: Path, disk: Fill) -> None:
    events, path, whole = pipeline(), tmp_path / "run.json", tmp_path / "whole.json"
    _record(PerfettoWriter(whole), events)
    for room in (9_000, 15_000, 15_001, 30_000):
        disk(room)
        writer = PerfettoWriter(path)
        with pytest.warns(OutputWarning, match="run.json"):
            _record(writer, events)
        json.loads(path.read_text())
        assert path.stat().st_size <= room
        run = read_run(path)
        assert run.totals == read_run(whole).totals
        assert "No space left on device" in run.incomplete
        assert 0 < len(run.boxes) < run.totals.boxes


def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    """Once the log was written to ``FILE.part``, whoever's that was."""
    other = tmp_path / "run.jsonl.part"
    other.write_text("not ours")
    for keep in (True, False):
        writer = LogWriter(tmp_path / "run.jsonl")
        writer.close(keep=keep)
        assert other.read_text() == "not ours"
