"""Steps: a step of one of torch's optimizers, by its fused kernel, without what `Optimizer.step` does around it.

A node updates itself often, and its parameters are few: what torch does before it comes to its kernel (hooks, groups,
profiler, closures) then costs more than the kernel. The state is kept where the optimizer keeps it, so its
``state_dict`` and learning-rate schedules work as always, and what cannot be done here is left to `Optimizer.step`.

    dense    all entries, divided by the number of gradients on the way
    rows     those rows of a table that got a gradient (SGD, Adagrad: the others would not change)

All of them are guarded (`ampnet.update.guard`): on a GPU, the device leaves a step out whose gradients are not finite.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from ampnet.native import calls
from ampnet.update.guard import found

_JOINED = 32
"""Sets of nodes whose steps are remembered. Where instances differ, not every node gets gradients in each wave."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """Several steppers."""

    lists: list[tuple[list[Tensor], ...]]
    """The state of each."""
    parameters: list[Tensor]
    state: tuple[list[Tensor], ...]
    calls: calls.Steps


class Stepper:
    """Makes the steps of one optimizer with one group of parameters; see `stepper`."""

    may_be_plain = False
    """Whether a step may be ``w -= rate g`` and nothing else."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters: list[nn.Parameter] = list(self.group["params"])
        self._lists: tuple[list[Tensor], ...] | None = None
        self._known: list[int] = []
        self._scales: dict[float, Tensor] = {}
        self._native = calls.Steps()
        self._joined: dict[tuple[int, ...], _Joined] = {}
        """By the steppers that it made a step for."""

    @property
    def group(self) -> dict[str, Any]:
        """The optimizer's parameter group. Not to be cached: ``load_state_dict`` replaces it."""
        return self.optimizer.param_groups[0]

    def step(self, gradients: Sequence[Tensor], count: int) -> None:
        """One step with these gradient sums, which are divided by the number of gradients in place."""
        self.step_all([self], gradients, count)

    def step_all(self, steppers: Sequence[Stepper], gradients: Sequence[Tensor], count: int) -> None:
        """One step of several optimizers of one kind and equal settings, in one kernel call."""
        self.launch(steppers, gradients, count)
        for one in steppers:
            one.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedules of learning rates look at it
            one.taken()

    def launch(self, steppers: Sequence[Stepper], gradients: Sequence[Tensor], count: int) -> None:
        """The kernel calls of `step_all`, and nothing else."""
        lists = [one._look() for one in steppers]
        scale = None if count == 1 else self._scale(gradients[0], count)
        key = tuple(map(id, steppers))
        known = self._joined.get(key)
        if known is None or not all(map(operator.is_, known.lists, lists)):
            if len(self._joined) >= _JOINED:
                self._joined.clear()
            parameters: list[Tensor] = [p for one in steppers for p in one.parameters]
            state = tuple([t for some in lists for t in some[i]] for i in range(len(lists[0])))
            known = self._joined[key] = _Joined(lists, parameters, state, calls.Steps())
        self._native = known.calls
        self._dense(known.parameters, list(gradients), known.state, scale)

    def taken(self) -> None:
        """Called after a step that others made."""

    def settings(self) -> tuple[object, ...]:
        """Equal for steppers whose steps can be taken in one kernel call."""
        return (type(self), *map(self.group.get, _SETTINGS))

    def _look(self) -> tuple[list[Tensor], ...]:
        """Read the optimizer's state again, which may have been created or loaded since the last step."""
        known = list(map(id, self._of(self.parameters[0]).values()))
        if self._lists is None or known != self._known:
            self._lists = self._state()
            self._known = list(map(id, self._of(self.parameters[0]).values()))
        return self._lists

    def plain_rate(self) -> float | None:
        """The learning rate, where a step is ``w -= rate g`` and nothing else."""
        return None

    def can_step_rows(self) -> bool:
        """Whether a step leaves rows without a gradient unchanged."""
        return False

    def step_rows(self, table: Tensor, rows: Tensor, gradients: Tensor) -> None:
        """One step of these rows of the only parameter."""
        raise NotImplementedError

    def _scale(self, like: Tensor, count: float) -> Tensor:
        if count not in self._scales:
            self._scales[count] = torch.tensor(float(count), dtype=torch.float32, device=like.device)
        return self._scales[count]

    def _state(self) -> tuple[list[Tensor], ...]:
        raise NotImplementedError

    def _dense(
        self, parameters: list[Tensor], gradients: list[Tensor], state: tuple[list[Tensor], ...], scale: Tensor | None
    ) -> None:
        raise NotImplementedError

    def _of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state[parameter]
        return state

    def _count(self, parameter: nn.Parameter) -> Tensor:
        """The number of steps of a parameter, as the fused kernels want it."""
        state = self._of(parameter)
        step = state.get("step")
        if not isinstance(step, Tensor) or step.device != parameter.device:
            value = 0.0 if step is None else float(step)
            state["step"] = torch.tensor(value, dtype=torch.float32, device=parameter.device)
        counted: Tensor = state["step"]
        return counted

    def _kept(self, parameter: nn.Parameter, name: str) -> Tensor:
        state = self._of(parameter)
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
        kept: Tensor = state[name]
        return kept


class _Adam(Stepper):
    kernel = staticmethod(torch._fused_adam_)
    apart = False
    """Whether weights decay apart from the gradient."""

    def _state(self) -> tuple[list[Tensor], ...]:
        ps = self.parameters
        return (
            [self._kept(p, "exp_avg") for p in ps],
            [self._kept(p, "exp_avg_sq") for p in ps],
            [self._count(p) for p in ps],
        )

    def _dense(
        self, parameters: list[Tensor], gradients: list[Tensor], state: tuple[list[Tensor], ...], scale: Tensor | None
    ) -> None:
        group, (means, squares, steps) = self.group, state
        if found() is None and self._native.adam(
            parameters,
            gradients,
            means,
            squares,
            steps,
            rate=group["lr"],
            betas=group["betas"],
            eps=group["eps"],
            decay=group["weight_decay"],
            apart=self.apart,
            count=1.0 if scale is None else float(scale),
        ):
            return
        _count_step(steps)
        self.kernel(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=found(),
        )


class _AdamW(_Adam):
    kernel = staticmethod(torch._fused_adamw_)
    apart = True


class _Sgd(Stepper):
    may_be_plain = True

    def _state(self) -> tuple[list[Tensor], ...]:
        if not self.group["momentum"]:
            return ([],)
        self._first = any(self._of(p).get("momentum_buffer") is None for p in self.parameters)
        for p in self.parameters:
            if self._of(p).get("momentum_buffer") is None:
                self._of(p)["momentum_buffer"] = torch.zeros_like(p).detach()
        return ([self._of(p)["momentum_buffer"] for p in self.parameters],)

    _first = False

    def settings(self) -> tuple[object, ...]:
        self._look()
        return (*super().settings(), self._first)

    def _dense(
        self, parameters: list[Tensor], gradients: list[Tensor], state: tuple[list[Tensor], ...], scale: Tensor | None
    ) -> None:
        group = self.group
        torch._fused_sgd_(
            parameters,
            gradients,
            state[0],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=self._first,
            grad_scale=scale,
            found_inf=found(),
        )

    def taken(self) -> None:
        self._first = False

    def plain_rate(self) -> float | None:
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return float(self.group["lr"]) if self.can_step_rows() else None

    def can_step_rows(self) -> bool:
        return not self.group["momentum"] and not self.group["weight_decay"]

    def step_rows(self, table: Tensor, rows: Tensor, gradients: Tensor) -> None:
        table.index_add_(0, rows, gradients.to(table.dtype), alpha=-self.group["lr"])
        self.optimizer._opt_called = True  # type: ignore[attr-defined]


class _Adagrad(Stepper):
    def _state(self) -> tuple[list[Tensor], ...]:
        return [self._of(p)["sum"] for p in self.parameters], [self._count(p) for p in self.parameters]

    def _settings(self) -> dict[str, Any]:
        group = self.group
        return {
            "lr": group["lr"],
            "lr_decay": group["lr_decay"],
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "maximize": False,
        }

    def _dense(
        self, parameters: list[Tensor], gradients: list[Tensor], state: tuple[list[Tensor], ...], scale: Tensor | None
    ) -> None:
        group, (sums, steps) = self.group, state
        if found() is None and self._native.adagrad(
            parameters,
            gradients,
            sums,
            steps,
            rate=group["lr"],
            rate_decay=group["lr_decay"],
            eps=group["eps"],
            decay=group["weight_decay"],
            count=1.0 if scale is None else float(scale),
        ):
            return
        _count_step(steps)
        torch._fused_adagrad_(
            parameters, gradients, sums, steps, grad_scale=scale, found_inf=found(), **self._settings()
        )

    def can_step_rows(self) -> bool:
        return not self.group["weight_decay"]

    def step_rows(self, table: Tensor, rows: Tensor, gradients: Tensor) -> None:
        (whole,), steps = self._look()
        torch._foreach_add_(steps, 1)
        before, sums = table.index_select(0, rows), whole.index_select(0, rows)
        some = before.clone()
        torch._fused_adagrad_([some], [gradients.to(table.dtype)], [sums], steps, **self._settings())
        table.index_add_(0, rows, some.sub_(before))  # others may have moved the rows meanwhile
        whole.index_copy_(0, rows, sums)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]


class _AdagradOnDevice(Stepper):
    """torch has no fused Adagrad for a GPU: a few calls, each for all parameters."""

    def _state(self) -> tuple[list[Tensor], ...]:
        return [self._of(p)["sum"] for p in self.parameters], [self._count(p) for p in self.parameters]

    def _dense(
        self, parameters: list[Tensor], gradients: list[Tensor], state: tuple[list[Tensor], ...], scale: Tensor | None
    ) -> None:
        group, (sums, steps), bad = self.group, state, found()
        _count_step(steps)
        if scale is not None:
            torch._foreach_div_(gradients, scale)
        if group["weight_decay"]:
            torch._foreach_add_(gradients, parameters, alpha=group["weight_decay"])
        if bad is not None:  # a gradient of zero changes nothing
            for g in gradients:
                g.masked_fill_(bad > 0, 0)
        torch._foreach_addcmul_(sums, gradients, gradients, value=1)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, gradients, roots, value=-group["lr"])


def _count_step(steps: list[Tensor]) -> None:
    bad = found()
    if bad is None:
        torch._foreach_add_(steps, 1)
    else:
        torch._foreach_add_(steps, [1 - bad] * len(steps))  # one kernel; with a single tensor it would be one a step


_SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "lr_decay")
_STEPPERS: dict[type[Optimizer], type[Stepper]] = {Adam: _Adam, AdamW: _AdamW, SGD: _Sgd, Adagrad: _Adagrad}


def stepper(optimizer: Optimizer) -> Stepper | None:
    """A fused stepper for an optimizer; None if the optimizer has to be stepped by its own ``step()``."""
    kind = _STEPPERS.get(type(optimizer))
    if kind is None or len(optimizer.param_groups) != 1:
        return None
    group = optimizer.param_groups[0]
    unusual = ("amsgrad", "maximize", "differentiable", "capturable")
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if hooked or any(group.get(name) for name in unusual) or isinstance(group["lr"], Tensor):
        return None
    first = group["params"][0]
    alike = all(p.device == first.device and p.dtype == first.dtype for p in group["params"])
    if not all(p.is_contiguous() for p in group["params"]):
        return None  # columns of a larger matrix (a tile): the kernels take memory as it comes
    if not alike or first.dtype not in (torch.float32, torch.float64) or first.device.type not in ("cpu", "cuda"):
        return None
    if kind is _Adagrad and first.device.type != "cpu":
        return None if group["lr_decay"] else _AdagradOnDevice(optimizer)
    return kind(optimizer)
