"""Promise P13: a worker killed at any point ends in a named error or in the right result, never in a hang.

Each seed picks a model, the number of workers, a victim and a moment:

    never        the results must be the inline runtime's
    turn         SIGKILL by the controller, after so many of its turns
    later        SIGKILL from beside, after so many microseconds: at whatever instruction the victim is
    frame        SIGKILL by the victim itself, when it sends its n-th frame (a slice, a note): before, or after
    operation    the same when it has played its n-th operation, or received its n-th slice
    fork         the same before it has done anything
    close        SIGKILL just before the runtime is closed

Then the same with workers that are started again: each instance is counted once, whatever the moment.

25 seeds of each run by default, 1,000 with ``-m slow``.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Inline, Instance, Processes, Update
from ampnet.data import generated
from ampnet.errors import AmpnetError, RestartWarning, WorkerDied
from ampnet.lang import Compiled, compile
from ampnet.models import AdaptiveDepth, Mlp, PermutedLayers
from ampnet.runtime.host import Host
from ampnet.runtime.workers import Workers
from ampnet.testing import assert_close
from ampnet.wave.player import Player
from tests.runtime.conftest import children

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
HOW = ("never", "turn", "later", "frame", "operation", "fork", "close")
BLOCK = 25


@dataclass
class Case:
    """A model that is compiled once, and what the inline runtime makes of it."""

    graph: Compiled
    instances: list[Instance]
    start: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of all instances, weights frozen."""
    weights: dict[str, Tensor]
    """After one epoch, one instance in flight."""
    loss: float
    """Of all instances, weights frozen."""

    def begin(self) -> None:
        """The weights as they were at first."""
        with torch.no_grad():
            for name, parameter in self.graph.model.named_parameters():
                parameter.copy_(self.start[name])

    def now(self) -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in self.graph.model.named_parameters()}

    def summed(self) -> dict[str, Tensor]:
        """The gradients that have added up."""
        return {name: total.clone() for name, total in self.graph.gradients().items()}


UPDATE = Update(partial(torch.optim.Adam, lr=0.01), 1, "instances")


@cache
def case(name: str) -> Case:
    torch.manual_seed(0)
    models: dict[str, Any] = {
        "mlp": (Mlp(8, 3, 4), generated.images(6, 0, 8, 4)),
        "depth": (AdaptiveDepth(2, 5, 2), generated.rotations(6, 0, 3)),
        "permuted": (PermutedLayers(6, 3, 3), generated.permutations(6, 0, 6, 3, 3, 3)),
    }
    model, data = models[name]
    data = [tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in row) for row in data]
    graph = compile(model.double(), *data[-1])
    made = Case(graph, [graph.instance(*row) for row in data], {}, {}, {}, 0.0)
    made.start = made.now()
    with Inline(graph, update=None, max_active_keys=3) as inline:
        made.loss = inline.train(made.instances).loss
    made.gradients = made.summed()
    with Inline(graph, update=UPDATE, max_active_keys=1) as inline:
        inline.train(made.instances)
    made.weights = made.now()
    return made


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(how: str, victim: int, when: int, patch: pytest.MonkeyPatch, runtime: Processes) -> list[int]:
    """Lay the trap, before the workers are forked. Returns the count down to it."""
    left = [when]

    def last() -> bool:
        left[0] -= 1
        return left[0] == 0

    if how == "turn":
        turn = runtime._turn

        def turned() -> None:
            if last():
                os.kill(runtime.pids[victim], signal.SIGKILL)
            turn()

        patch.setattr(runtime, "_turn", turned)
    elif how == "later":
        make = runtime._make_workers

        def made(streams: Any) -> Any:
            out = make(streams)
            timer = threading.Timer(when * 4e-4, os.kill, (runtime.pids[victim], signal.SIGKILL))
            timer.daemon = True
            timer.start()
            patch.setattr(runtime, "timer", timer, raising=False)
            return out

        patch.setattr(runtime, "_make_workers", made)
    elif how == "frame":
        send = Host._send

        def sent(host: Host, *args: Any) -> None:
            mine = host.number == victim and last()
            if mine and when % 2:
                die()
            send(host, *args)
            if mine:
                die()

        patch.setattr(Host, "_send", sent)
    elif how == "operation":
        for name in ("_play", "take"):
            original = getattr(Player, name)

            def played(player: Player, *args: Any, original: Any = original) -> Any:
                out = original(player, *args)
                if player.name == f"worker{victim}" and last():
                    die()
                return out

            patch.setattr(Player, name, played)
    elif how == "fork":
        work = Workers._be_worker

        def begun(workers: Workers, number: int, pulse: Any) -> None:
            if number == victim and left[0] > 0:
                die()
            work(workers, number, pulse)

        patch.setattr(Workers, "_be_worker", begun)
    return left


def disarm(runtime: Processes, left: list[int], patch: pytest.MonkeyPatch) -> None:
    """Workers that are started again find no trap."""
    hire, generations = runtime._hire, []

    def hired() -> None:
        generations.append(None)
        if len(generations) > 1:
            left[0] = -1
        hire()

    patch.setattr(runtime, "_hire", hired)


def one(seed: int, patch: pytest.MonkeyPatch, restarts: int = 0) -> str:
    """One run; returns what came of it."""
    rng = np.random.default_rng(seed)
    how = HOW[seed % len(HOW)]
    of = case(("mlp", "depth", "permuted")[int(rng.integers(3))])
    of.begin()
    workers, frozen = int(rng.integers(2, 4)), bool(rng.integers(2))
    affinity = {node: int(rng.integers(workers)) for node in of.graph.nodes}
    schedule = (None, "fifo", "sweep", "random")[int(rng.integers(4))]
    victim, when = int(rng.integers(workers)), int(rng.integers(1, 60))
    capacity = (1 << 20, 2048)[int(rng.integers(2))]
    keys = 3 if frozen else 1
    runtime = Processes(
        of.graph,
        workers=workers,
        affinity=affinity,
        max_active_keys=keys,
        update=None if frozen else UPDATE,
        capacity=capacity,
        schedule=schedule,
        seed=seed,
        max_restarts=restarts,
    )
    disarm(runtime, arm(how, victim, when, patch, runtime), patch)
    death: WorkerDied | None = None
    with runtime:
        if restarts:
            return goes_on(of, runtime, how, victim, frozen)
        try:
            loss = runtime.train(of.instances).loss
            if frozen:
                assert loss == pytest.approx(of.loss, abs=1e-10)
                assert_close(of.summed(), of.gradients)
            else:
                assert_close(of.now(), of.weights)
            assert how != "fork"
            if how == "never":
                assert not runtime.held()
            runtime.infer(of.instances)
            assert runtime.stats().engine == "waves"
        except WorkerDied as error:
            death = error
        if death is not None:
            assert how != "never"
            assert death.worker == f"worker{victim}"
            assert "SIGKILL" in str(death)
            assert all(bool(p.isfinite().all()) for p in of.now().values())
            with pytest.raises(AmpnetError, match="this runtime has ended: worker"):
                runtime.train(of.instances)
            return "died"
        if how == "close":
            os.kill(runtime.pids[victim], signal.SIGKILL)
        timer = getattr(runtime, "timer", None)
        if timer is not None:
            timer.cancel()
            timer.join()
    return "came through"


def goes_on(of: Case, runtime: Processes, how: str, victim: int, frozen: bool) -> str:
    """A run whose workers are started again: every instance is counted, once, and the runtime can be used."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RestartWarning)
        trained = runtime.train(of.instances)
        if how == "close":
            os.kill(runtime.pids[victim], signal.SIGKILL)
        judged = runtime.infer(of.instances)
        assert not runtime.held()
    timer = getattr(runtime, "timer", None)
    if timer is not None:
        timer.cancel()
        timer.join()
    assert trained.instances == judged.instances == len(of.instances)
    assert trained.records == judged.records == sum(one.records for one in of.instances)
    restarts = runtime.stats().restarts
    assert len(told) == restarts
    if frozen:
        assert [trained.loss, judged.loss] == pytest.approx([of.loss] * 2, abs=1e-10)
    else:
        assert np.isfinite(trained.loss)
        assert all(bool(p.isfinite().all()) for p in of.now().values())
        if not restarts:
            assert_close(of.now(), of.weights)
    if how in ("fork", "close"):
        assert restarts >= 1
    if how == "never":
        assert not restarts
    for warning in told:
        assert f"worker 'worker{victim}' was killed by signal 9" in str(warning.message)
    return "started again" if restarts else "came through"


def block(number: int, restarts: int = 0) -> dict[str, int]:
    kids, fds = children(), len(os.listdir("/proc/self/fd"))
    found: dict[str, int] = {}
    for seed in range(BLOCK * number, BLOCK * (number + 1)):
        with pytest.MonkeyPatch.context() as patch:
            try:
                came = one(seed, patch, restarts)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        found[came] = found.get(came, 0) + 1
        assert children() == kids, seed
        assert len(os.listdir("/proc/self/fd")) <= fds, seed
    return found


@pytest.mark.timeout(600)  # what hangs, hangs for ever
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 40))])
def test_a_worker_killed_at_a_random_point(number: int) -> None:
    found = block(number)
    assert found["died"] >= 5
    assert found["came through"] >= 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 40))])
def test_training_goes_on_after_a_kill_at_a_random_point(number: int) -> None:
    found = block(number, restarts=2)
    assert found["started again"] >= 5
    assert found["came through"] >= 3  # those that nobody kills


@pytest.mark.timeout(600)
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_at_every_operation_of_three_waves(victim: int, frozen: bool) -> None:
    """Two workers, six instances in waves of two; the victim dies after its 1st, 2nd, ... operation or slice."""
    of, when, kids = case("mlp"), 0, children()
    affinity = {name: i % 2 for i, name in enumerate(of.graph.nodes)}
    while True:
        when += 1
        of.begin()
        with pytest.MonkeyPatch.context() as patch:
            runtime = Processes(
                of.graph, workers=2, affinity=affinity, max_active_keys=4, wave_size=2, max_restarts=1,
                update=None if frozen else Update(partial(torch.optim.Adam, lr=0.01), 2, "instances"),
            )  # fmt: skip
            disarm(runtime, arm("operation", victim, when, patch, runtime), patch)
            with runtime:
                came = goes_on(of, runtime, "operation", victim, frozen=frozen) if frozen else learns(of, runtime)
        assert children() == kids, when
        if came == "came through":
            break
    assert when > 10  # so many operations there are


def learns(of: Case, runtime: Processes) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RestartWarning)
        trained = runtime.train(of.instances)
        assert not runtime.held()
    assert trained.instances == len(of.instances)
    assert all(bool(p.isfinite().all()) for p in of.now().values())
    apart = [float((p - of.start[n]).abs().max()) for n, p in of.now().items()]
    assert max(apart) < 0.01 * 2 * len(
        of.instances
    )  # Adam: at most its rate in each update; each instance at most twice
    return "started again" if runtime.stats().restarts else "came through"
