"""Protocol: what the controller and its worker processes say to one another besides batches of messages.

    to workers       STRUCTURE  arrays of instances about to be pumped        RETIRE   instances that are done
                     FORGET     what is left of instances of an inference     FLUSH    a training stream is over
                     ABANDON    drop all that is in flight                    ASK      say how you are
                     SHOW       send what happened                            STOP     end
                     STAGE      compute these instances, which you have had from the start
    among workers    TOKEN      what runs round the replicas of a node
    to controller    REPORT     what a loss has judged                        ERROR    a node failed
                     EVENTS     what happened, for the log; to SHOW           ANSWER   to ASK
                     EQUAL      the replicas of a node are, after a stream

A frame holds numbers, texts and arrays, nothing that would have to be unpickled. Messages carry, with the number of the
port they are for, the number of the **era** they belong to: every ABANDON begins a new one, and what is still under way
from the one before is dropped wherever it arrives.

Where a worker computes whole instances at once, it also has to know which of them are of one **stream**: those of two
streams that run together are not computed together, for their losses are reported apart. The number of the stream (0,
1, ... in a run) is in the note STAGE, and in the target of pumped messages (`Ports.stream`).
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
from ampnet.message import Messages
from ampnet.nodes.loss import Loss
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
    STAGE = 10
    REPORT = 11
    ERROR = 12
    EVENTS = 13
    ANSWER = 14
    EQUAL = 15


_STREAMS = 1 << 20
"""Numbers of streams. They may come again when all have been used: never are so many streams under way."""


class Ports:
    """All places that messages are sent to, numbered: input ports forward, output ports and the controller backward.

    At the controller there is one for each input, and one for `done_messages`.
    """

    def __init__(self, graph: Graph) -> None:
        forward = [End(name, i) for name, node in graph.nodes.items() for i in range(len(node.inputs))]
        backward = [End(name, i) for name, node in graph.nodes.items() for i in range(len(node.outputs))]
        backward += [End(CONTROLLER, i) for i in range(len(graph.inputs) + 1)]
        self.done = backward[-1]
        self.ends = (forward, backward)
        self._numbers = tuple({end: i for i, end in enumerate(ends)} for ends in self.ends)
        self._count = max(len(forward), len(backward))

    def target(self, end: End, direction: Direction, era: int, stream: int = 0) -> int:
        """The number of a place, in an era, for messages of a stream.

        Batches of two targets are never put together on the way. So a stream is only named where that is wanted.
        """
        return (era * _STREAMS + stream % _STREAMS) * self._count + self._numbers[direction][end]

    def find(self, target: int, direction: int) -> tuple[End, int]:
        """The place and the era of a number."""
        stream, number = divmod(target, self._count)
        return self.ends[direction][number], stream // _STREAMS

    def stream(self, target: int) -> int:
        """The stream of a number; 0 where none was named."""
        return target // self._count % _STREAMS


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


def done_messages(instances: Sequence[int], reports: Sequence[Report], losses: Sequence[str]) -> Messages:
    """Training instances that are done, and what losses have judged meanwhile, as messages: quicker than any note.

    state      instance, kind: 0 for one that is done, i + 1 for a judgement of loss i
    payload    loss, rows, whether it was skipped, metrics
    """
    width = 3 + max((len(r.metrics) for r in reports), default=0)
    count = len(instances) + sum(len(r.states) for r in reports)
    columns = np.zeros((2, count), dtype=np.int64)
    numbers = np.zeros((count, width))
    start = len(instances)
    columns[0, :start] = instances
    for report in reports:
        stop = start + len(report.states)
        columns[0, start:stop] = report.states.column("instance")
        columns[1, start:stop] = 1 + losses.index(report.node)
        part = numbers[start:stop]
        part[:, 0], part[:, 1] = report.loss.numpy(force=True), report.rows
        part[report.skipped, 2] = 1
        for i, values in enumerate(report.metrics.values(), start=3):
            part[:, i] = values.numpy(force=True)
        start = stop
    return Messages.trusted(torch.from_numpy(numbers), States.trusted(_DONE, columns), None, True)


_DONE = ("instance", "kind")


def done_of(messages: Messages, losses: Mapping[str, Sequence[str]]) -> tuple[Column, list[Report]]:
    """The instances, and the reports. ``losses``: the names of their metrics."""
    assert messages.payload is not None
    (instances, kinds), numbers = messages.states.columns, messages.payload.numpy()
    reports = []
    for kind, (node, metrics) in enumerate(losses.items(), start=1):
        at = np.flatnonzero(kinds == kind)
        if len(at):
            found = numbers[at].T
            rows = torch.from_numpy(found)
            reports.append(
                Report(
                    node,
                    States.trusted(_DONE[:1], instances[at].reshape(1, -1)),
                    True,
                    rows[0],
                    {name: rows[i] for i, name in enumerate(metrics, start=3)},
                    found[1].astype(np.int64),
                    skipped=np.flatnonzero(found[2]),
                )
            )
    return instances[kinds == 0], reports


def loss_metrics(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By the name under which losses report: the names of their metrics."""
    losses = (node for node in graph.nodes.values() if isinstance(node, Loss))
    return {loss.label: tuple(loss.metrics) for loss in losses}


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
