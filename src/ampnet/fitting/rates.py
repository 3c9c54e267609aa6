"""Learning rates from the loop: a torch scheduler sets the rates of the optimizers of all nodes.

    every node                    its own optimizer, perhaps in another process
    proxy (in this process)       a torch optimizer that updates nothing: a parameter group for each node, with its rate
    scheduler of the proxy        steps after each epoch; the rates in the groups are sent to the nodes

So a scheduler does not depend on the number of optimizers, nor on their processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord


class LearningRate(Callback):
    """Steps a scheduler of `torch.optim.lr_scheduler` at the end of each epoch, for all nodes.

        LearningRate(partial(CosineAnnealingLR, T_max=20))
        LearningRate(partial(ReduceLROnPlateau, patience=2, mode="max"), metric="accuracy")

    ``make`` is called with an optimizer that has a parameter group for each node, whose ``"name"`` is the node's; a
    `ReduceLROnPlateau` gets the epoch's ``metric``. Updates use the new rates as soon as the node receives them. Nodes
    whose `Update` has its own ``schedule`` are not changed.
    """

    def __init__(self, make: Callable[[Optimizer], LRScheduler], *, metric: str = "loss") -> None:
        self._make, self.metric = make, metric
        self.scheduler: LRScheduler | None = None
        """The scheduler, after the start of `fit`; in a second `fit` it continues where it was."""
        self._proxy: Optimizer | None = None

    def on_begin(self, run: Run) -> None:
        self._runtime = run.runtime
        if self.scheduler is None:
            nodes = run.runtime.graph.parameterised().items()
            own = {run.runtime.graph.called(name) for name, node in nodes if _scheduled(node)}
            rates = {name: rate for name, rate in run.runtime.learning_rates.items() if name not in own}
            if not rates:
                raise ValueError("no node has a learning rate that could be set: all are frozen, or have a schedule")
            groups = [{"params": [torch.zeros(1)], "lr": rate, "name": name} for name, rate in rates.items()]
            self._proxy = SGD(groups, lr=0.0)
            self.scheduler = self._make(self._proxy)
        if isinstance(self.scheduler, ReduceLROnPlateau):
            run.check(self.metric)
            if self.metric.endswith("accuracy") and self.scheduler.mode == "min":
                raise ValueError(
                    "a higher accuracy is better: give ReduceLROnPlateau mode='max' (its default is 'min')"
                )
        self._send()

    def state(self) -> dict[str, Any]:
        assert self._proxy is not None
        assert self.scheduler is not None
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self._proxy.param_groups]
        return {"groups": groups, "scheduler": self.scheduler.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        assert self._proxy is not None
        assert self.scheduler is not None
        names = [group["name"] for group in self._proxy.param_groups]
        if names != [group["name"] for group in state["groups"]]:
            raise ValueError(f"the checkpoint has rates of {[g['name'] for g in state['groups']]}, this run of {names}")
        for group, values in zip(self._proxy.param_groups, state["groups"], strict=True):
            group.update(values)
        self.scheduler.load_state_dict(dict(state["scheduler"]))
        self._send()

    def on_epoch_end(self, record: EpochRecord) -> None:
        assert self._proxy is not None
        self._proxy.step()  # updates nothing; schedulers expect it before their own step
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(record.value(self.metric))
        elif self.scheduler is not None:
            self.scheduler.step()
        self._send()

    def _send(self) -> None:
        assert self._proxy is not None
        wanted = {group["name"]: float(group["lr"]) for group in self._proxy.param_groups}
        now = self._runtime.learning_rates
        changed = {name: rate for name, rate in wanted.items() if now.get(name) != rate}
        if changed:
            self._runtime.set_learning_rates(changed)


def _scheduled(node: Any) -> bool:
    return node.updater.policy is not None and node.updater.policy.schedule is not None
