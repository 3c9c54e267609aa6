"""Updater: a node's weights, the sum of their gradients, and the rule by which one changes the other.

Every update raises ``version`` by one. A forward stores the version it saw; the difference at the backward is the
message's **staleness**, exact and per message.

With ``weights="stash"`` the weights of a version are copied just before the update that would overwrite them, if any
live message was forwarded under them, and dropped when the last such message has come back. A node whose forward keeps
tensors of its weights (a tape of autograd) computes with such a copy from the start (`hold`).

The sums are float32 where the parameters are narrower (bfloat16, float16), so that small gradients are not lost while
they add up; they are cast to the parameter's dtype for the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampnet.update.policy import Update
from ampnet.update.remedies.copied import CopiedWeights
from ampnet.update.remedies.estimate import Estimate
from ampnet.update.remedies.mean import WeightsInUse
from ampnet.update.remedies.predict import Predict
from ampnet.update.remedies.rate import AnnealedRate, InverseRate, grows
from ampnet.update.remedies.remedy import Remedy, remedied
from ampnet.update.steps import Stepper, stepper
from ampnet.update.sums import Sums

USUAL = (AnnealedRate(1000),)
"""The remedies of an `Update` that names none, where replicas share weights."""
USUAL_WHERE_STEPS_GROW = (InverseRate(0.5),)
"""The same for optimizers whose steps are too large for many replicas all the time (`grows`)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One update of a node."""

    version: int
    """The node's version after it: updates so far."""
    count: int
    """How many gradients (messages or instances) it holds."""
    reason: str
    """"full": the counter reached ``min_update_frequency``; "flush": the epoch ended; "late", "together": see
    `ampnet.replicas.member`."""


class Updater:
    """The weights of one node and their updates. Without a policy, weights are frozen and gradients only add up."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.weights: list[Tensor] = []
        self.adding = Sums(())
        """Where gradients are added; some products may be pending (`sums` is complete)."""
        self.rebind()
        self.version = 0
        self.counter = 0
        self.policy: Update | None = None
        self.shares = False
        """Whether replicas of the node in other processes write to the same weights."""
        self.remedies: tuple[Remedy, ...] = ()
        self.stashes = self.counts_messages = False
        self.optimizer: Optimizer | None = None
        self.stepper: Stepper | None = None
        self.schedule: LRScheduler | None = None
        self.lags: list[tuple[int, int]] = []
        """(staleness, messages) of the last backward batch."""
        self.lag = 0.0
        """Running mean of the staleness of messages."""
        self.heard: tuple[int, int] | None = None
        """Sum of staleness, and messages, of the gradients that have not been applied; None: nothing ever came."""
        self.view: WeightsInUse | None = None
        """Which weights forwards and backwards use, if not simply the current or stashed ones."""
        self.around: Callable[[], float] = float
        """Returns the mean staleness of the stalest node, where replicas share weights; else 0."""
        self.live_versions: Callable[[], set[int]] = set
        self._touched = False
        self.waiting = False
        """Whether updates wait for a synchronisation with other replicas."""
        self.together = False
        """Whether updates are made together with other replicas only."""
        self.of_all: Callable[[], int] | None = None
        """The number of updates of shared weights, by all replicas; None: ``version``."""
        self.touched: list[Tensor] | None = None
        """Rows of the first parameter that got a gradient, if the node records them; None: any row may have."""
        self.dense = False
        """Whether steps are of all rows of a table, though rows are recorded: on a GPU that costs less than to find out
        which of them differ, and zero gradients change nothing."""
        self._partly = False
        """Whether some of the parameters are frozen."""
        self._stash: dict[int, list[Tensor]] = {}
        self.direct: float | None = None
        """The factor of gradients that are added to the weights directly (see `go_direct`)."""
        self.may_go_direct = False
        """Whether they are in some waves of this kind, though perhaps not in this one."""
        self._went = False

    def rebind(self, zeros: Callable[[Tensor, torch.dtype], Tensor] | None = None) -> None:
        """Bind the parameters again, after they were moved or cast. Sums start from zero.

        ``weights`` share memory with the parameters, so the optimizer's in-place steps are seen at once. ``zeros``
        may make the sums elsewhere: as many numbers as a weight has, of a type.
        """
        self.weights = [p.detach() for p in self.parameters]
        make = zeros or (lambda like, dtype: torch.zeros_like(like, dtype=dtype))
        self.adding = Sums(make(w, sum_dtype(w)) for w in self.weights)
        self._narrow = any(sum_dtype(w) != w.dtype for w in self.weights[:1])
        """Whether sums are wider than the parameters."""

    @property
    def all_sums(self) -> Sums:
        """Where the gradients of all parameters of the node are added; the same as `adding`, unless a node has faces
        (`ampnet.nodes.tied`)."""
        return self.adding

    def picked(self, sums: Sums) -> Sums:
        """Those of some sums like `all_sums` that are of these parameters."""
        return sums

    @property
    def whole(self) -> Updater:
        """The updater of the whole node, of which this one may be a face's."""
        return self

    def own(self, weights: list[Tensor]) -> list[Tensor]:
        """Those of the weights of `whole` that are of these parameters."""
        return weights

    @property
    def sums(self) -> Sums:
        """Returns the complete sum of each parameter's gradients. Must be called again after further messages."""
        self.adding.settle()
        return self.adding

    def adopt(self, policy: Update | None) -> None:
        """Use this policy from now on, starting with no gradients. The optimizer is made here, once."""
        if any(p.data_ptr() != w.data_ptr() for p, w in zip(self.parameters, self.weights, strict=True)):
            self.rebind()
        self.reset()
        self.of_all = None
        trained = [p for p in self.parameters if p.requires_grad]
        self.policy = policy = policy if trained else None
        seen = None if policy is None else policy.weights
        if seen == "auto" and self.touched is not None:  # the backward of a table reads none of its rows
            seen = "current"
        elif seen == "auto":
            seen = "stash"
        self.stashes = seen == "stash" and not self.shares
        self.counts_messages = policy is not None and policy.count == "messages"
        self.remedies = ()
        if policy is None:
            return
        self.optimizer = policy.optimizer(trained)
        usual = () if not self.shares else USUAL_WHERE_STEPS_GROW if grows(self.optimizer) else USUAL
        self.remedies = usual if policy.remedies is None else policy.remedies
        self.stepper = stepper(self.optimizer)
        self._trained = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        self._partly = len(trained) < len(self.parameters)
        self.schedule = policy.schedule(self.optimizer) if policy.schedule is not None else None
        self.lag, self.heard = 0.0, None
        derived: type[WeightsInUse] | None = {"estimate": Estimate, "predict": Predict}.get(seen or "")
        if seen == "stash" and self.shares:
            derived = CopiedWeights
        self.view = None if derived is None or self.touched is not None else derived(self)

    @property
    def learning_rate(self) -> float | None:
        """The optimizer's current learning rate; None without an optimizer, or if another process has it."""
        return None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in () if self.optimizer is None else self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def leave(self) -> None:
        """Another process updates these weights: drop the optimizer and its schedule."""
        self.optimizer = self.stepper = self.schedule = None

    def reset(self) -> None:
        """Drop the accumulated gradients."""
        self._start_anew()
        self._went = False
        self.adding.zero()

    @property
    def pending(self) -> bool:
        """Whether there are gradients that have not been applied."""
        return self._touched

    def set_pending(self, sums: Sequence[Tensor], rows: Tensor | None) -> None:
        """Continue from these gradient sums. ``rows``: the rows of a table that they touch, if rows are recorded."""
        for total, given in zip(self.adding, sums, strict=True):
            total.copy_(given)
        self._touched = True
        if self.touched is not None and rows is not None:
            self.touched.append(rows)

    def touch(self, rows: Tensor) -> None:
        """Record that these rows of a table got a gradient, if rows are recorded."""
        if self.touched is not None and self.policy is not None:
            self.touched.append(rows)

    def go_direct(self, instances: int) -> None:
        """Gradients of ``instances`` arrive together: if an update is due with them, and it is plain gradient descent,
        they can be added to the weights directly, without sums.

        A caller that did so for all parameters calls `went_direct`; the update itself is still made when it is due.
        """
        policy, quick = self.policy, self.stepper
        self.direct, self._went, self.may_go_direct = None, False, False
        if (
            quick is None
            or not quick.may_be_plain
            or not quick.can_step_rows()
            or policy is None
            or self.counts_messages
            or self.together
            or self._partly
            or (self.view is not None and not self.view.direct)
            or instances < policy.min_update_frequency
            or not self._is_plain()
        ):
            return
        self.may_go_direct = True
        if self._touched or self.waiting or self._changes(lambda: max(self.lag, self.around())):
            return
        rate = None if self.version in self.live_versions() else quick.plain_rate()
        if rate is not None:
            self.direct = -rate / (instances if policy.average else 1)

    @property
    def went(self) -> bool:
        """Whether the gradients are in the weights already, and not in the sums."""
        return self._went

    def went_direct(self) -> None:
        """Called when all gradients have been added to the weights directly."""
        self._went = True

    def room(self) -> int | None:
        """How many more backward messages fit before the next update is due; None: any number."""
        if self.policy is None or not self.counts_messages or self.waiting or self.together:
            return None
        return self.policy.min_update_frequency - self.counter

    def seen_version(self) -> int:
        """The version of the weights that a forward uses now."""
        return self.version if self.of_all is None else self.of_all()

    def note_lags(self, versions: list[tuple[int, int]]) -> None:
        """Record the versions that messages saw, with the number of messages of each, at their backward."""
        now = self.seen_version()
        self.hear([(now - version, count) for version, count in versions])

    def hear(self, lags: list[tuple[int, int]]) -> None:
        """Record (staleness, messages) of gradients that are added to the sums."""
        self.lags = lags
        stale = messages = 0
        for lag, count in lags:
            stale += lag * count
            messages += count
        if not messages:
            return
        if self.heard is None:
            self.heard, self.lag = (0, 0), stale / messages
        self.heard = self.heard[0] + stale, self.heard[1] + messages
        self.lag += 0.1 * (stale / messages - self.lag)

    def _changes(self, staleness: Callable[[], float]) -> bool:
        """Whether the remedies change a step with gradients of this staleness, which takes long to find out."""
        if not self.remedies:
            return False
        now = self.seen_version()
        left = [remedy for remedy in self.remedies if not remedy.over(now)]
        lag = staleness() if left else 0.0
        return bool(lag) and any(one.rate(lag, now) != 1 or one.momentum(0.9, lag) != 0.9 for one in left)

    def _pending_lag(self) -> float:
        """The mean staleness of the gradients that have not been applied. Where replicas share weights, at least that
        of the stalest node: a gradient that depends on old weights elsewhere is as old as they are."""
        stale, messages = self.heard or (0, 0)
        return max(stale / messages if messages else self.lag, self.around())

    def count_messages(self, n: int) -> None:
        """Gradients of ``n`` messages have been added to the sums."""
        self._touched = True
        if self.counts_messages or self.policy is None:
            self.counter += n

    def count_instances(self, n: int) -> None:
        """``n`` instances have retired. They count where gradients have come in since the last update."""
        if self._touched and self.policy is not None and not self.counts_messages:
            self.counter += n

    def due(self) -> bool:
        """Whether an update is to be made now."""
        return self.full() and not self.waiting and not self.together

    def full(self) -> bool:
        """Whether the counter has reached ``min_update_frequency``."""
        return self.policy is not None and self._touched and self.counter >= self.policy.min_update_frequency

    def apply(self, reason: str = "full") -> Applied | None:
        """Update the weights with the accumulated gradients. None if there are none, or if weights are frozen."""
        if self.policy is None or not self._touched:
            return None
        count = max(self.counter, 1)
        if self._went:
            self._went = False
            self._stepped()
        else:
            assert self.optimizer is not None
            with remedied(self.optimizer, self.remedies, self._pending_lag(), self.seen_version()):
                if not self._step_rows(count):
                    self._step(self.sums, count)
                    self.adding.forget()
            self._stepped()
        self._start_anew()
        return Applied(self.version, count, reason)

    # -- steps of several updaters at once (see `ampnet.update.at_once`)

    def alike(self) -> object:
        """Equal for updaters that can share one kernel call; None: it cannot share one."""
        quick, policy = self.stepper, self.policy
        if quick is None or policy is None or not self._touched or self._went:
            return None
        if not self._is_plain() or self._changes(self._pending_lag):
            return None
        if self.touched and quick.can_step_rows() and not self.dense:
            return None
        return quick.settings(), self.divisor(), self.parameters[0].dtype, self.parameters[0].device

    @property
    def guardable(self) -> bool:
        """Whether the device can leave its steps out (`ampnet.update.guard`)."""
        if self.policy is None:
            return True
        return self.stepper is not None and self._is_plain() and self.view is None and not self.remedies

    def divisor(self) -> int:
        """The number that the gradient sums are divided by."""
        assert self.policy is not None
        return max(self.counter, 1) if self.policy.average else 1

    def begin_step(self) -> Sequence[Tensor]:
        """Stash the weights if a passage holds them; returns the gradient sums for the step."""
        self._keep_version()
        return self._of_trained(self.sums)

    def end_step(self) -> None:
        """Bookkeeping after the step: version, counter, sums."""
        self._stepped()
        self.adding.forget()
        self._start_anew()

    def apply_together(self, sums: Sequence[Tensor], count: int, own: int) -> Applied | None:
        """Update the weights with the gradients of all replicas. ``own``: how many of them are this one's."""
        if self.policy is None:
            return None
        assert self.optimizer is not None
        with remedied(self.optimizer, self.remedies, self._pending_lag(), self.seen_version()):
            self._step([total.clone() for total in sums], count)
        self._stepped()
        self.heard = None if self.heard is None else (0, 0)
        return Applied(self.version, own, "together")

    def give(self) -> int:
        """Reset the sums after a caller has taken them. Returns the number of gradients in them."""
        count = max(self.counter, 1) if self._touched else 0
        self.adding.zero()
        self._start_anew()
        return count

    def replace(self, weights: Sequence[Tensor]) -> None:
        """Copy these weights into the parameters. The version grows by one, as in an update."""
        self._keep_version()
        for weight, given in zip(self.weights, weights, strict=True):
            weight.copy_(given)
        self.version += 1
        self.rebase()

    def rebase(self) -> None:
        """The weights were replaced, which is no movement of theirs: measure it from here."""
        if self.view is not None and self.view.moving is not None:
            self.view.moving.rebase()

    def _start_anew(self) -> None:
        if self.touched is not None:
            self.touched.clear()
        self.counter, self._touched = 0, False
        self.heard = None if self.heard is None else (0, 0)

    def _step(self, sums: list[Tensor], count: int) -> None:
        """One optimizer step with these gradient sums, which it may change."""
        policy, optimizer = self.policy, self.optimizer
        assert policy is not None
        assert optimizer is not None
        self._keep_version()
        if self.stepper is not None and self._is_plain():
            self.stepper.step(self._of_trained(sums), count if policy.average else 1)
            return
        if policy.average and count > 1:
            torch._foreach_div_(sums, count)
        for parameter, total in zip(self.parameters, sums, strict=True):
            if parameter.requires_grad:
                parameter.grad = total if total.dtype == parameter.dtype else total.to(parameter.dtype)
        if policy.clip_value is not None:
            nn.utils.clip_grad_value_(self.parameters, policy.clip_value)
        if policy.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, policy.clip_norm)
        optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None

    def _of_trained(self, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums of the parameters that are not frozen."""
        return [sums[i] for i in self._trained] if self._partly else sums

    def _is_plain(self) -> bool:
        """Whether all sums are applied as they are."""
        policy = self.policy
        assert policy is not None
        return policy.clip_norm is None and policy.clip_value is None and not self._narrow

    def _step_rows(self, count: int) -> bool:
        """One step of only those rows of a table that got a gradient, if the optimizer leaves the others unchanged."""
        policy, quick = self.policy, self.stepper
        if not self.touched or self.dense or self._partly or quick is None or not quick.can_step_rows():
            return False
        if not self._is_plain():
            return False
        assert policy is not None
        self._keep_version()
        total = self.sums[0]
        rows = torch.unique(torch.cat(self.touched) if len(self.touched) > 1 else self.touched[0])
        gradients = total.index_select(0, rows)
        quick.step_rows(self.weights[0], rows, gradients.div_(count) if policy.average and count > 1 else gradients)
        total.index_fill_(0, rows, 0)
        return True

    def _stepped(self) -> None:
        """After a step: the schedule, the version, the movement of the weights."""
        if self.schedule is not None and self.policy is not None and self.policy.schedule_every == "update":
            self.schedule.step()
        self.version += 1
        if self.view is not None and self.view.moving is not None:
            self.view.moving.stepped()

    def end_epoch(self) -> None:
        """At the end of an epoch, after the flush: step the learning-rate schedule."""
        if (
            self.schedule is not None
            and self.policy is not None
            and self.policy.schedule_every == "epoch"
            and self.version
        ):
            self.schedule.step()  # (torch warns of a schedule that steps before its optimizer ever did)

    def _keep_version(self) -> None:
        """Before an update: stash the weights if a passage holds them."""
        if self.version not in self._stash and self.version in self.live_versions():
            self._stash[self.version] = [w.clone() for w in self.weights]

    @property
    def looks_back(self) -> bool:
        """Whether a backward uses other weights than the current ones, if they have changed since its forward."""
        return self.stashes or self.view is not None

    def forward_weights(self) -> list[Tensor]:
        """The weights that a forward in training uses now."""
        return self.weights if self.view is None else self.view.forward()

    def weights_of(self, version: int) -> list[Tensor]:
        """The weights for the backward of a forward that saw this version; where they are stashed, those it used."""
        if self.view is not None:
            return self.view.backward(version)
        return self.weights if version == self.version else self._stash[version]

    def pinned(self, version: int) -> list[Tensor]:
        """The weights of a version that a passage pins."""
        return self.weights if version == self.version else self._stash[version]

    def hold(self, version: int) -> list[Tensor]:
        """The weights of a version that a passage pins, as tensors that no update writes to."""
        if version == self.version and version not in self._stash:
            self._stash[version] = [w.clone() for w in self.weights]
        return self._stash[version]

    def forget_versions(self, live: set[int]) -> None:
        """Drop the stashed weights of other versions than these."""
        for version in [v for v in self._stash if v not in live]:
            del self._stash[version]

    def stashed(self) -> int:
        """The number of stashed versions of the weights."""
        return len(self._stash)


def no_sums(like: Tensor, dtype: torch.dtype) -> Tensor:
    """For `Updater.rebind`: sums that take no memory, where weights are only read."""
    return torch.zeros((), dtype=dtype).expand(like.shape)


def sum_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of gradient sums for weights of this dtype."""
    return torch.float32 if weight.dtype in (torch.bfloat16, torch.float16) else weight.dtype
