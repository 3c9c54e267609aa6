"""State of an updater: everything that decides a node's next updates, as tensors and plain data.

    tensors    weight/0 ...          parameters, in the order of the node (only if asked for)
               optimizer/0/exp_avg   the optimizer's state, by trained parameter
               sum/0 ...             gradients that have not been applied yet, if there are any
               rows                  rows of a table that these gradients touch
               mean/0, last/0 ...    mean update, and weights after the last, if weights are derived from them
    data       version, counter, staleness, the optimizer's settings, its learning-rate schedule

The tensors are the updater's own, not copies: a caller that keeps them copies them, one that sends them need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ampnet.errors import CheckpointError
from ampnet.update.updater import Updater

if TYPE_CHECKING:
    from ampnet.nodes.transform import Parameterised


@dataclass(slots=True)
class UpdaterState:
    """See the head of this file."""

    tensors: dict[str, Tensor]
    data: dict[str, Any]

    def applied(self) -> UpdaterState:
        """Returns the state without gradients that were not applied: those of an old state are in newer weights."""
        kept = {name: tensor for name, tensor in self.tensors.items() if name.split("/")[0] not in ("sum", "rows")}
        return UpdaterState(kept, {**self.data, "counter": 0, "pending": False, "heard": None})


def state_of(updater: Updater, *, weights: bool) -> UpdaterState:
    """Returns the state of an updater between two of its node's operations."""
    tensors: dict[str, Tensor] = {}
    if weights:
        tensors |= {f"weight/{i}": weight for i, weight in enumerate(updater.weights)}
    data: dict[str, Any] = {"version": updater.version, "counter": updater.counter, "pending": updater.pending}
    data["lag"], data["heard"] = updater.lag, None if updater.heard is None else list(updater.heard)
    if updater.view is not None and updater.view.moving is not None:
        moving = updater.view.moving
        tensors |= {f"mean/{i}": mean for i, mean in enumerate(moving.mean)}
        tensors |= {f"last/{i}": last for i, last in enumerate(moving.last)}
        data["moved_at"] = moving.at
    if updater.pending:
        tensors |= {f"sum/{i}": total for i, total in enumerate(updater.sums)}
        if updater.touched:
            tensors["rows"] = torch.cat(updater.touched)
    if updater.optimizer is not None:
        _add_optimizer(updater, tensors, data)
    return UpdaterState(tensors, data)


def _add_optimizer(updater: Updater, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    assert updater.optimizer is not None
    held = updater.optimizer.state_dict()
    numbers: dict[str, Any] = {}
    for i, state in held["state"].items():
        for name, value in state.items() if isinstance(state, dict) else [(str(i), state)]:
            if isinstance(value, Tensor) and value.layout is torch.strided:
                tensors[f"optimizer/{i}/{name}"] = value
            elif is_plain(value):
                numbers[f"{i}/{name}"] = value
            else:
                raise CheckpointError(
                    f"{type(updater.optimizer).__name__} keeps '{name}', a {type(value).__name__}: only tensors and "
                    f"plain numbers can be kept in a checkpoint"
                )
    groups = [{k: v for k, v in group.items() if k != "params"} for group in held["param_groups"]]
    data["optimizer"] = {
        "kind": type(updater.optimizer).__name__,
        "numbers": numbers,
        "groups": [{k: _number(v) for k, v in group.items() if is_plain(_number(v))} for group in groups],
    }
    if updater.schedule is not None:
        kept = updater.schedule.state_dict()
        data["schedule"] = {name: value for name, value in kept.items() if is_plain(value)}


def check_states(nodes: Mapping[str, Parameterised], states: Mapping[str, UpdaterState]) -> None:
    """Raise `CheckpointError` if parameters or optimizers of nodes are not those of their states."""
    for name, node in nodes.items():
        _optimizer_state(node.updater, states[name].tensors, states[name].data, name)
        _check_shapes(node.updater, states[name].tensors, name)


def restore_state(updater: Updater, state: UpdaterState, node: str, *, pending: bool = True) -> None:
    """Give an updater a copy of this state, which must fit (`check_states`), but not its weights. ``pending``: with
    gradients not applied yet."""
    tensors, data = state.tensors, state.data
    loaded = _optimizer_state(updater, tensors, data, node)
    updater.reset()
    updater.version = data["version"]
    if loaded is not None and updater.optimizer is not None:
        updater.optimizer.load_state_dict({**loaded, "state": deepcopy(loaded["state"])})  # which keeps the tensors
    if updater.schedule is not None and "schedule" in data:
        updater.schedule.load_state_dict(deepcopy(data["schedule"]))
    heard = data.get("heard")
    updater.lag, updater.heard = float(data.get("lag", 0.0)), None if heard is None else (int(heard[0]), int(heard[1]))
    if updater.view is not None and updater.view.moving is not None and "moved_at" in data:
        moving = updater.view.moving
        for kept, name in ((moving.mean, "mean"), (moving.last, "last")):
            for i, tensor in enumerate(kept):
                tensor.copy_(tensors[f"{name}/{i}"])
        moving.at = data["moved_at"]
    if pending and data["pending"]:
        updater.counter = data["counter"]
        updater.set_pending([tensors[f"sum/{i}"] for i in range(len(updater.weights))], tensors.get("rows"))


def _check_shapes(updater: Updater, tensors: Mapping[str, Tensor], node: str) -> None:
    for i, weight in enumerate(updater.weights):
        for what in ("weight", "sum", "mean", "last"):
            found = tensors.get(f"{what}/{i}")
            if found is not None and found.shape != weight.shape:
                raise CheckpointError(
                    f"node '{node}': parameter {i} has shape {tuple(weight.shape)}, in the checkpoint "
                    f"{tuple(found.shape)}: it is of another model"
                )


def _optimizer_state(
    updater: Updater, tensors: Mapping[str, Tensor], data: Mapping[str, Any], node: str
) -> dict[str, Any] | None:
    """Returns the ``state_dict`` to load; None if there is no optimizer on either side."""
    optimizer, kept = updater.optimizer, data.get("optimizer")
    here = None if optimizer is None else type(optimizer).__name__
    there = None if kept is None else kept["kind"]
    if here != there:
        raise CheckpointError(
            f"node '{node}' has {here or 'no optimizer'}, in the checkpoint {there or 'no optimizer'}: resume with the "
            f"optimizer that it was trained with"
        )
    if optimizer is None or kept is None:
        return None
    held = optimizer.state_dict()
    if len(held["param_groups"]) != len(kept["groups"]):
        raise CheckpointError(f"node '{node}': its optimizer has other parameter groups than in the checkpoint")
    groups = []
    for own, given in zip(held["param_groups"], kept["groups"], strict=True):
        values: dict[str, Any] = {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in given.items()}
        if isinstance(own.get("lr"), Tensor):
            values["lr"] = torch.full_like(own["lr"], values["lr"])
        groups.append({**own, **values})
    count = sum(len(group["params"]) for group in groups)
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *((f"optimizer/{k}", v) for k, v in kept["numbers"].items())]:
        if name.startswith("optimizer/"):
            _, number, key = name.split("/", 2)
            if not number.isdigit() or int(number) >= count:
                raise CheckpointError(f"node '{node}': its optimizer has {count} parameters, and no number {number}")
            state.setdefault(int(number), {})[key] = value
    for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for key, value in state.get(place, {}).items():
            if isinstance(value, Tensor) and value.numel() > 1 and value.numel() != parameter.numel():
                raise CheckpointError(
                    f"node '{node}': '{key}' of its optimizer has shape {tuple(value.shape)}, and the parameter "
                    f"{tuple(parameter.shape)}: the checkpoint is of another model"
                )
    return {"state": state, "param_groups": groups}


def rate_of(state: UpdaterState) -> float | None:
    """Returns the learning rate; None without an optimizer."""
    optimizer = state.data.get("optimizer")
    return None if optimizer is None else float(optimizer["groups"][0]["lr"])


def is_plain(value: object) -> bool:
    """Whether a value survives JSON: None, bool, int, float, str, and lists and dicts of such."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _number(value: object) -> object:
    """Returns a learning rate that is a tensor as a number."""
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
