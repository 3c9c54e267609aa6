"""Protocol: the notes between the controller and its worker processes.

    to workers       STAGE    instances to be played                         FLUSH   a training stream has ended
                     RATES    learning rates of nodes, from now on
                     ABANDON  drop all that is in flight                     ASK     answer with counts and queues
                     SHOW     send the events collected so far               STOP    end
                     SAVE     send the states of nodes with parameters       WEIGHTS of a node, if memory is not shared
    among workers    TOKEN    synchronises the replicas of a node; besides, slices of rows (`ampnet.wave.slice`)
    to controller    DONE     training losses, and instances played          REPORT  losses and predictions of inference
                     ERROR    a node failed                                  EVENTS  for the log
                     ANSWER   to ASK                                         EQUAL   replicas are equal after a stream
                     STATE    to SAVE, one for each node
    both ways        PEEK     the weights of nodes, for predictions beside a run (`ampnet.runtime.beside`)

A note holds numbers, texts and arrays, so nothing is unpickled. The sender adds the number of its **era**: every
ABANDON begins a new one. Frames of an earlier era are dropped on arrival.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from ampnet import errors
from ampnet.errors import CheckpointError, NodeError, StallError, TransportError
from ampnet.graph import Graph
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.nodes.transform import Parameterised
from ampnet.replicas.member import Token
from ampnet.runtime.transport import Note
from ampnet.state import Column, States
from ampnet.update.state import UpdaterState, state_of


class Kind(IntEnum):
    """The kinds of notes."""

    STAGE = 1
    FLUSH = 2
    ABANDON = 3
    ASK = 4
    SHOW = 5
    STOP = 6
    TOKEN = 7
    DONE = 8
    REPORT = 9
    ERROR = 10
    EVENTS = 11
    ANSWER = 12
    EQUAL = 13
    RATES = 14
    SAVE = 15
    STATE = 16
    WEIGHTS = 17
    PEEK = 18


def token_note(token: Token, table: Sequence[torch.Tensor] = ()) -> Note:
    """Returns a note with a token. ``table``: what it carries, where members do not share memory."""
    return Note(Kind.TOKEN, asdict(token), {str(i): tensor for i, tensor in enumerate(table)})


def token_of(note: Note, table: Sequence[torch.Tensor] = ()) -> Token:
    """Returns the token of a note. ``table``: tensors that get the values that it carries."""
    if len(note.arrays) != len(table):
        raise TransportError(f"a token with {len(note.arrays)} tensors for a table of {len(table)}")
    for i, mine in enumerate(table):
        given = torch.as_tensor(note.arrays[str(i)])
        if given.shape != mine.shape or given.dtype != mine.dtype:
            raise TransportError(f"a token with a tensor of {tuple(given.shape)} for one of {tuple(mine.shape)}")
        mine.copy_(given)
    return Token(**{item.name: note.data[item.name] for item in fields(Token)})


def report_note(report: Report) -> Note:
    """Returns a note with the report of a loss or result."""
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
        "node": report.node,
        "fields": list(report.states.fields),
        "train": report.train,
        "labelled": report.labelled,
        "metrics": list(report.metrics),
    }
    return Note(Kind.REPORT, data, arrays)


def done_note(instances: Sequence[int], reports: Sequence[Report], losses: Sequence[str]) -> Note:
    """Returns a note with the played instances, and reports of training as one table:

    judged     for each judged message: instance, number of the loss
    values     for each judged message: loss, rows, whether it was skipped, metrics
    """
    count = sum(len(r.states) for r in reports)
    arrays: dict[str, Any] = {"instances": np.array(instances, dtype=np.int64)}
    if count:
        judged = np.zeros((2, count), dtype=np.int64)
        values = np.zeros((count, 3 + max(len(r.metrics) for r in reports)))
        start = 0
        for report in reports:
            stop = start + len(report.states)
            judged[0, start:stop], judged[1, start:stop] = report.states.column("instance"), losses.index(report.node)
            part = values[start:stop]
            part[:, 0], part[:, 1] = _numbers(report.loss), report.rows
            part[report.skipped, 2] = 1
            for i, metric in enumerate(report.metrics.values(), start=3):
                part[:, i] = _numbers(metric)
            start = stop
        arrays |= {"judged": judged, "values": values}
    return Note(Kind.DONE, {}, arrays)


def _numbers(values: torch.Tensor) -> Any:
    """Returns values as an array; NumPy has no bfloat16."""
    return (values.float() if values.dtype is torch.bfloat16 else values).numpy(force=True)


def done_of(note: Note, losses: Mapping[str, Sequence[str]]) -> tuple[Column, list[Report]]:
    """Returns the instances and the reports of a note. ``losses``: by name, the names of their metrics."""
    instances, reports = np.asarray(note.arrays["instances"]), []
    if "judged" in note.arrays:
        judged, values = np.asarray(note.arrays["judged"]), np.asarray(note.arrays["values"])
        for number, (node, metrics) in enumerate(losses.items()):
            at = np.flatnonzero(judged[1] == number) if len(losses) > 1 else np.arange(judged.shape[1])
            if len(at):
                found = np.ascontiguousarray(values[at].T)
                rows = torch.from_numpy(found)
                reports.append(
                    Report(
                        node,
                        States.trusted(("instance",), judged[:1, at]),
                        True,
                        rows[0],
                        {name: rows[i] for i, name in enumerate(metrics, start=3)},
                        found[1].astype(np.int64),
                        skipped=np.flatnonzero(found[2]),
                    )
                )
    return instances, reports


def state_notes(nodes: Iterable[Parameterised], token: int, weights: bool) -> Iterator[Note]:
    """Yields a note with the state of each node, or why it has none, and a last note without a node."""
    for node in nodes:
        about = {"token": token, "node": node.name}
        try:
            state = state_of(node.updater, weights=weights)
        except CheckpointError as error:
            yield Note(Kind.STATE, {**about, "fault": str(error)})
        else:
            yield Note(Kind.STATE, {**about, "fault": None, "state": state.data}, dict(state.tensors))
    yield Note(Kind.STATE, {"token": token, "node": None})


def peek_note(nodes: Iterable[Parameterised], asked: Note) -> Note:
    """Returns a note with versions and weights of those nodes that are asked for."""
    wanted = [node for node in nodes if node.name in asked.data["nodes"]]
    versions = {node.name: node.updater.version for node in wanted}
    arrays: dict[str, Any] = {f"{n.name}/{i}": w for n in wanted for i, w in enumerate(n.updater.weights)}
    return Note(Kind.PEEK, {"token": asked.data["token"], "versions": versions}, arrays)


def state_from(note: Note) -> UpdaterState:
    """Returns the state of a node, from its note."""
    return UpdaterState({name: torch.as_tensor(value) for name, value in note.arrays.items()}, note.data["state"])


def weights_note(node: Parameterised) -> Note:
    """Returns a note with the weights of a node, for workers that do not share its memory."""
    return Note(Kind.WEIGHTS, {"node": node.name}, {str(i): w for i, w in enumerate(node.updater.weights)})


def take_weights(note: Note, graph: Graph) -> None:
    """Write the weights of a note into the parameters of their node."""
    for i, weight in enumerate(graph.parameterised()[note.data["node"]].updater.weights):
        weight.copy_(torch.as_tensor(note.arrays[str(i)]))


def loss_metrics(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns the names of the metrics of each loss, by the loss's name in reports."""
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


def error_note(error: BaseException, trace: str) -> Note:
    """Returns a note with an error, as text."""
    cause = error.__cause__ if isinstance(error, NodeError) and error.__cause__ is not None else error
    data: dict[str, Any] = {
        "kind": type(cause).__name__,
        "text": str(cause),
        "trace": trace,
    }
    arrays: dict[str, Any] = {}
    if isinstance(error, StallError):
        data |= {"in_flight": error.in_flight, "waits": error.waits}
    if isinstance(error, NodeError):
        data |= {"node": error.node, "direction": error.direction, "worker": error.worker}
        if error.states is not None:
            data["fields"] = list(error.states.fields)
            arrays["states"] = np.ascontiguousarray(error.states.columns)
    return Note(Kind.ERROR, data, arrays)


def error_of(note: Note, worker: str) -> Exception:
    """Returns the error of a note: of its own type if that is ampnet's or a Python built-in."""
    data = note.data
    kind = getattr(errors, data["kind"], None) or getattr(builtins, data["kind"], None)
    cause: Exception = RuntimeError(f"{data['kind']}: {data['text']}")
    if kind is StallError:
        cause = StallError(data["in_flight"], data["waits"])
    elif isinstance(kind, type) and issubclass(kind, Exception) and kind is not errors.GraphError:
        with suppress(TypeError):  # its constructor takes other arguments
            cause = kind(data["text"])
    cause.add_note(f"in worker '{worker}':\n{data['trace']}")
    if "node" not in data:
        return cause
    states = States(data["fields"], np.asarray(note.arrays["states"])) if "fields" in data else None
    error = NodeError(data["node"], data["direction"], states, data["worker"], cause)
    error.__cause__ = cause
    return error
