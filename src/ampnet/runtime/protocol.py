"""Protocol: what the controller and its worker processes say to one another besides batches of messages.

    to workers       LAUNCH     instances about to be pumped, and how many answers each waits for
                     STRUCTURE  arrays of instances about to be pumped        RETIRE   instances that are done
                     FORGET     what is left of instances of an inference     FLUSH    a training stream is over
                     ABANDON    drop all that is in flight                    ASK      say how you are
                     SHOW       send what happened                            STOP     end
    among workers    TOKEN      what runs round the replicas of a node
    to controller    REPORT     what a loss has judged                        ERROR    a node failed
                     EVENTS     what happened, for the log; to SHOW           ANSWER   to ASK
                     EQUAL      the replicas of a node are, after a stream    DONE     instances that are answered

A frame holds numbers, texts and arrays, nothing that would have to be unpickled. Messages carry, with the number of the
port they are for, the number of the **era** they belong to: every ABANDON begins a new one, and what is still under way
from the one before is dropped wherever it arrives.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from ampnet import errors
from ampnet.errors import NodeError
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.nodes.node import Direction, Report
from ampnet.replicas.member import Token
from ampnet.runtime.transport import Note
from ampnet.state import Column, States
from ampnet.structure import Structure


class Kind(IntEnum):
    """The kinds of notes."""

    STRUCTURE = 1
    RETIRE = 2
    FORGET = 3
    FLUSH = 4
    ABANDON = 5
    ASK = 6
    STOP = 7
    SHOW = 8
    TOKEN = 9
    LAUNCH = 10
    REPORT = 11
    ERROR = 12
    EVENTS = 13
    ANSWER = 14
    EQUAL = 15
    DONE = 16


class Ports:
    """All places that messages are sent to, numbered: input ports forward, output ports and the controller backward."""

    def __init__(self, graph: Graph) -> None:
        forward = [End(name, i) for name, node in graph.nodes.items() for i in range(len(node.inputs))]
        backward = [End(name, i) for name, node in graph.nodes.items() for i in range(len(node.outputs))]
        backward += [End(CONTROLLER, i) for i in range(len(graph.inputs))]
        self.ends = (forward, backward)
        self._numbers = tuple({end: i for i, end in enumerate(ends)} for ends in self.ends)
        self._count = max(len(forward), len(backward))

    def target(self, end: End, direction: Direction, era: int) -> int:
        """The number of a place, in an era."""
        return era * self._count + self._numbers[direction][end]

    def find(self, target: int, direction: int) -> tuple[End, int]:
        """The place and the era of a number."""
        era, number = divmod(target, self._count)
        return self.ends[direction][number], era


def structure_note(structures: Mapping[int, Structure]) -> Note:
    """Structures of instances, end to end."""
    ids = list(structures)
    names = list(next(iter(structures.values())).arrays)
    arrays: dict[str, Any] = {"ids": np.array(ids, dtype=np.int64)}
    for i, name in enumerate(names):
        pieces = [s.arrays[name] for s in structures.values()]
        arrays[f"size{i}"] = np.array([len(p) for p in pieces], dtype=np.int64)
        arrays[f"data{i}"] = np.concatenate(pieces)
    return Note(Kind.STRUCTURE, {"names": names}, arrays)


def structures_of(note: Note) -> dict[int, Structure]:
    ids = np.asarray(note.arrays["ids"]).tolist()
    out = {n: Structure() for n in ids}
    for i, name in enumerate(note.data["names"]):
        cuts = np.cumsum(np.asarray(note.arrays[f"size{i}"]))[:-1]
        for n, piece in zip(ids, np.split(np.asarray(note.arrays[f"data{i}"]), cuts), strict=True):
            out[n].arrays[name] = piece
    return out


def instances_note(kind: Kind, instances: Column, train: bool = False) -> Note:
    return Note(kind, {"train": train}, {"instances": np.asarray(instances, dtype=np.int64)})


def launch_note(instances: Sequence[int], due: Sequence[int]) -> Note:
    return Note(Kind.LAUNCH, {}, {"instances": np.array(instances), "due": np.array(due)})


def token_note(token: Token, era: int) -> Note:
    return Note(Kind.TOKEN, {"era": era, **asdict(token)}, {})


def token_of(note: Note) -> Token:
    return Token(**{item.name: note.data[item.name] for item in fields(Token)})


def report_note(report: Report, era: int) -> Note:
    """What a loss has judged."""
    arrays: dict[str, Any] = {
        "states": np.ascontiguousarray(report.states.columns),
        "loss": report.loss,
        "rows": report.rows,
        "skipped": np.asarray(report.skipped, dtype=np.int64),
    }
    for i, values in enumerate(report.metrics.values()):
        arrays[f"metric{i}"] = values
    if report.prediction is not None:
        arrays["prediction"] = report.prediction
    if report.offsets is not None:
        arrays["offsets"] = report.offsets
    data = {
        "era": era,
        "node": report.node,
        "fields": list(report.states.fields),
        "train": report.train,
        "labelled": report.labelled,
        "metrics": list(report.metrics),
    }
    return Note(Kind.REPORT, data, arrays)


def done_note(instances: Sequence[int], reports: Sequence[Report], era: int) -> Note:
    """Training instances that are answered, and what losses have judged meanwhile, in few arrays."""
    arrays: dict[str, Any] = {"done": np.array(instances, dtype=np.int64)}
    kinds: dict[tuple[Any, ...], list[Report]] = {}
    for report in reports:
        kinds.setdefault((report.node, report.labelled, *report.metrics), []).append(report)
    for i, some in enumerate(kinds.values()):
        arrays[f"at{i}"] = np.concatenate([r.states.column("instance") for r in some])
        columns = [[r.loss, torch.from_numpy(r.rows), *r.metrics.values()] for r in some]
        arrays[f"numbers{i}"] = torch.cat([torch.stack([c.to(torch.float64) for c in one]) for one in columns], 1)
        starts = np.cumsum([0, *(len(r.states) for r in some)])
        arrays[f"skipped{i}"] = np.concatenate([r.skipped + at for r, at in zip(some, starts, strict=False)])
    return Note(Kind.DONE, {"era": era, "kinds": list(kinds)}, arrays)


def done_of(note: Note) -> tuple[Column, list[Report]]:
    """The instances, and the reports."""
    reports = []
    for i, (node, labelled, *metrics) in enumerate(note.data["kinds"]):
        at, numbers = np.asarray(note.arrays[f"at{i}"]), torch.as_tensor(note.arrays[f"numbers{i}"])
        reports.append(
            Report(
                node,
                States.trusted(("instance",), at.reshape(1, -1)),
                True,
                numbers[0],
                {name: numbers[2 + j] for j, name in enumerate(metrics)},
                numbers[1].to(torch.int64).numpy(),
                skipped=np.asarray(note.arrays[f"skipped{i}"]),
                labelled=labelled,
            )
        )
    return np.asarray(note.arrays["done"]), reports


def report_of(note: Note) -> Report:
    data, arrays = note.data, note.arrays
    return Report(
        data["node"],
        States(data["fields"], np.asarray(arrays["states"])),
        data["train"],
        torch.as_tensor(arrays["loss"]),
        {name: torch.as_tensor(arrays[f"metric{i}"]) for i, name in enumerate(data["metrics"])},
        np.asarray(arrays["rows"]),
        torch.as_tensor(arrays["prediction"]) if "prediction" in arrays else None,
        np.asarray(arrays["offsets"]) if "offsets" in arrays else None,
        np.asarray(arrays["skipped"]),
        data["labelled"],
    )


def error_note(error: BaseException, era: int, trace: str) -> Note:
    """An error, as text."""
    cause = error.__cause__ if isinstance(error, NodeError) and error.__cause__ is not None else error
    data: dict[str, Any] = {
        "era": era,
        "kind": type(cause).__name__,
        "text": str(cause),
        "trace": trace,
    }
    arrays: dict[str, Any] = {}
    if isinstance(error, NodeError):
        data |= {"node": error.node, "direction": error.direction, "worker": error.worker}
        if error.states is not None:
            data["fields"] = list(error.states.fields)
            arrays["states"] = np.ascontiguousarray(error.states.columns)
    return Note(Kind.ERROR, data, arrays)


def error_of(note: Note, worker: str) -> Exception:
    """The error again: of its own kind where that is one of ours or of Python's."""
    data = note.data
    kind = getattr(errors, data["kind"], None) or getattr(builtins, data["kind"], None)
    cause: Exception = RuntimeError(f"{data['kind']}: {data['text']}")
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not errors.GraphError:
        try:
            cause = kind(data["text"])
        except TypeError:  # it wants other arguments
            cause = RuntimeError(f"{data['kind']}: {data['text']}")
    cause.add_note(f"in worker '{worker}':\n{data['trace']}")
    if "node" not in data:
        return cause
    states = States(data["fields"], np.asarray(note.arrays["states"])) if "fields" in data else None
    error = NodeError(data["node"], data["direction"], states, data["worker"], cause)
    error.__cause__ = cause
    return error
