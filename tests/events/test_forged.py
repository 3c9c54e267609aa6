"""Forged and damaged files of runs: each is read or refused by name, and nothing of it runs in a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.cli import main
from ampnet.controller import Progress
from ampnet.errors import AmpnetError, DataError
from ampnet.events import gantt_page
from ampnet.events.check import check
from ampnet.events.gantt import chart
from ampnet.events.log import LogWriter, read_log
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.record import RunRecord
from ampnet.events.report import drawing_of, page
from ampnet.events.run_file import read_run
from tests.events.mutated import CANARY, mutated
from tests.events.replicated import replicated
from tests.events.runs import epoch, runtime, update

EACH = 25
"""Files that are mutated for each seed."""
LIVE = ("<script>document", "<img src=x", " onload='document")
"""Texts of `tests.events.mutated` that would run."""


@cache
def files() -> dict[str, list[str]]:
    """The lines of small logs and traces: of messages, of waves, of replicas; one with the drawing of its graph."""
    found = {}
    with TemporaryDirectory() as folder:
        log, trace = Path(folder) / "run.jsonl", Path(folder) / "run.json"
        for name in ("messages", "waves", "replicas", "drawing"):
            writers = LogWriter(log), PerfettoWriter(trace)
            if name == "replicas":
                for event in replicated()[:45]:
                    for writer in writers:
                        writer(event)
            else:
                run = runtime(update(3), listeners=writers, max_active_keys=4, waves=name != "messages")
                run.settings["workload"] = "list-reduction"
                if name == "drawing":
                    run.settings["graph"] = drawing_of(run.graph)
                writers[1].turn(Progress("train 1", True, 0, 0.0, 1.5, {"accuracy": 0.5}, 4))
                streams = [epoch(4, name="train 1", bucket=2), epoch(2, 1, train=False, name="valid 1")]
                run.run(streams, turn_seconds=0.0)
            for writer in writers:
                writer.close()
            found[f"{name}.jsonl"], found[f"{name}.json"] = (p.read_text().splitlines() for p in (log, trace))
    found["messages.jsonl"] = found["messages.jsonl"][:20]
    return found


def pages(run: RunRecord) -> str:
    """The report and the Gantt page, as they would be written."""
    text = page(run)
    if run.boxes:
        text += gantt_page.page(chart(run.boxes), run.boxes) + gantt_page.page(
            chart(run.boxes, rows="nodes"), run.boxes, "nodes"
        )
    text.encode()  # it can be written
    return text


def survive(name: str, data: bytes, folder: Path, *, drawn: bool) -> None:
    """Read a file in all ways that there are. Only errors of ours may be raised."""
    path = folder / name
    path.write_bytes(data)
    if name.endswith(".jsonl"):
        try:
            check(read_log(path))
        except AmpnetError as error:
            named(error, path)
    try:
        run = read_run(path)
    except DataError as error:
        named(error, path)
        return
    if drawn:
        try:
            text = pages(run)
        except DataError:
            return
        assert not any(one in text for one in LIVE)


def named(error: AmpnetError, path: Path) -> None:
    assert str(path) in str(error)
    assert len(str(error)) < 400 + len(str(path))
    assert str(error).isprintable()


@pytest.mark.parametrize("name", ["messages.jsonl", "waves.jsonl", "replicas.jsonl", "waves.json", "replicas.json"])
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_mutated_file_is_read_or_refused(name: str, seed: int) -> None:
    """5,000 of them in all."""
    with TemporaryDirectory() as folder:
        for number in range(EACH):
            rng = Random(f"{seed} {number}")
            survive(name, mutated(files()[name], rng), Path(folder), drawn=number % 5 == 0)


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_mutated_drawing_is_drawn_or_refused(seed: int) -> None:
    """Mutations of the settings only: they hold the graph."""
    lines = files()["drawing.jsonl"]
    with TemporaryDirectory() as folder:
        data = mutated(lines[:1], Random(seed)) + b"\n".join(map(str.encode, ["", *lines[1:], ""]))
        survive("drawing.jsonl", data, Path(folder), drawn=True)


def forged(lines: list[str], change: Callable[[dict[str, Any]], None], where: Callable[[dict[str, Any]], bool]) -> str:
    """A trace in which the first such event is changed."""
    out = list(lines)
    for number, line in enumerate(lines[1:-1], start=1):
        event = json.loads(line.removesuffix(","))
        if where(event):
            change(event)
            out[number] = json.dumps(event) + "," * line.endswith(",")
            break
    else:
        pytest.fail("there is no such event")
    return "\n".join(out) + "\n"


FIELDS = ("instances", "more", "messages", "rows", "version", "staleness", "wave", "round", "node")
VALUES: tuple[Any, ...] = (CANARY, [CANARY], {CANARY: 1}, [[CANARY]], True, -1, 1.5, None, 2**64)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_box_has_its_type(field: str, tmp_path: Path) -> None:
    """Once ``args.instances`` of a forged trace reached the page as it was: the keys of an object became instances."""
    path = tmp_path / "run.json"
    for value in VALUES:
        text = forged(
            files()["waves.json"],
            lambda event, value=value: event["args"].update({field: value}),  # type: ignore[misc]
            lambda event: event["ph"] == "X" and event["cat"] == "backward",
        )
        path.write_text(text)
        try:
            run = read_run(path)
        except DataError as error:
            said = str(error)
        else:
            said = ""
            assert not any(one in pages(run) for one in LIVE)
        allowed = (field == "node" and value == CANARY) or (field == "staleness" and value in (-1, 1.5))
        allowed |= value is None and field in ("version", "staleness", "wave", "round")
        assert bool(said) is not allowed
        assert not said or (f"{path}, line " in said and field in said and "was expected" in said)


@pytest.mark.parametrize("field", ["ts", "dur", "tid", "cat"])
def test_a_time_or_a_row_of_a_box_has_its_type(field: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for value in (CANARY, [], {}, float("nan"), float("inf"), None, True):
        text = forged(
            files()["waves.json"],
            lambda event, value=value: event.update({field: value}),  # type: ignore[misc]
            lambda event: event["ph"] == "X",
        )
        path.write_text(text)
        with pytest.raises(DataError, match=r"run\.json, line \d+: not an event of a trace of ours"):
            read_run(path)


def test_names_and_settings_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    evil = {"workload": CANARY, CANARY: [CANARY], "versions": {CANARY: CANARY}, "updates": {CANARY: {CANARY: CANARY}}}
    text = forged(files()["waves.json"], lambda e: e.update(args=evil), lambda e: e["name"] == "ampnet_settings")
    path.write_text(text.replace('"inline"', json.dumps(CANARY)).replace('"train 1"', json.dumps(CANARY)))
    made = pages(read_run(path))
    assert CANARY not in made
    assert "&lt;script&gt;document" in made


@pytest.mark.parametrize("command", ["check", "report", "gantt"])
@pytest.mark.parametrize(
    "data",
    [b"", b"\0\xff\xfe\0", b"[" * 100_000, b'{"a":' * 100_000, b"[1e999]", b"\x1f\x8b\x08\0", b"PK\x03\x04", b"null"],
    ids=["empty", "binary", "lists", "objects", "huge", "gzip", "zip", "null"],
)
def test_a_file_that_is_no_run_is_one_line(
    command: str, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(data)
    assert main([command, str(path), *([] if command == "check" else ["-o", str(tmp_path / "out.html")])]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ampnet: {path}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


def test_names_do_not_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    text = "\n".join(files()["waves.json"]) + "\n"
    path.write_text(text.replace('"list-reduction"', json.dumps("\x1b]0;owned\x07")))
    assert main(["gantt", str(path), "-o", str(tmp_path / "out.html")]) == 0
    assert capsys.readouterr().out.startswith("\\x1b]0;owned\\x07: ")


def test_a_log_that_ends_early_is_read_and_said_to_be_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "run.jsonl", tmp_path / "out.html"
    path.write_text("\n".join(files()["waves.jsonl"][:-4]) + "\n")
    for command in ("report", "gantt"):
        assert main([command, str(path), "-o", str(out)]) == 0
        assert f"ampnet: {path}: the log ends before its run does" in capsys.readouterr().err
    assert main(["report", str(path), "-o", str(out)]) == 0
    assert "<b>Incomplete:</b> the log ends before its run does" in out.read_text()
    capsys.readouterr()
    main(["check", str(path)])
    assert f"ampnet: {path}: the log ends before its run does" in capsys.readouterr().err


def test_a_field_with_a_very_long_name_is_refused(tmp_path: Path) -> None:
    """Once its whole name was in an error; found by `make fuzz`."""
    lines = [line.replace('"instance"', json.dumps("x" * 5000)) for line in files()["messages.jsonl"]]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as refused:
        list(read_log(path))
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 1000
