"""Fit: train for some epochs, validate after each, stop when the target is reached. The same loop for every runtime.

An epoch is two streams, its training and its validation. The runtime reads the streams from one iterator, and begins
the next while the last instances of the one before are still in flight, so that the machine is not idle between epochs:

    pumped   train 1 ............ valid 1 ... train 2 ............ valid 2 ... train 3 ..
    in flight            └ last of train 1 ┘           └ [1] ┘                     └ [3] ┘
                                                                         [2] valid 2 ends at the target: stop

[1] Without a barrier a validation uses weights that the last training instances still change, and its own last
    instances use weights of the next epoch: a difference of at most ``max_active_keys`` instances. ``barrier=True``
    prevents it: each stream waits for the one before, and each epoch is a separate run, after which nothing is in
    flight. With replicas there is always a barrier: they are synchronised after each training stream.
[2] The target is checked when a validation stream has ended, and the result refers to that stream's epoch.
[3] Instances of the next epoch that were already pumped complete and change weights, but are in no record.

With checkpoints (`ampnet.fitting.saving`), a resumed run continues the streams that were open at their positions,
skips those that had ended, and makes the same records as if it had never stopped.

A stream that was stopped early (by [2], or by another call of ``runtime.stop()``) is recognised by its remaining data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from ampnet.errors import CallbackError
from ampnet.fitting import resuming
from ampnet.fitting.callback import Callback, Callbacks, Run
from ampnet.fitting.checkpointing import Checkpoint
from ampnet.fitting.epochs import Epochs, Runtime
from ampnet.fitting.generators import set_generators
from ampnet.fitting.interrupting import first_ctrl_c
from ampnet.fitting.metrics import check_metric, metric_names, split_name
from ampnet.fitting.packed import unpack
from ampnet.fitting.records import FitInterrupted, FitResult
from ampnet.fitting.saving import Saver
from ampnet.fitting.sources import length_of, source_of
from ampnet.snapshot import Snapshot
from ampnet.tally import is_loss


def fit(
    runtime: Runtime,
    *,
    train: Any,
    valid: Any = None,
    epochs: int,
    callbacks: Sequence[Callback] = (),
    metric: str = "loss",
    target: float | None = None,
    higher_is_better: bool | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    barrier: bool = False,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
    resume: bool | str | Path = False,
    clock: Callable[[], float] = time.perf_counter,
) -> FitResult:
    """Train for ``epochs`` epochs, or until ``metric`` of a validation is at or beyond ``target``.

    ``train`` and ``valid`` are data sets: lists or Datasets of samples (what ``graph.instance`` takes) or of instances,
    other iterables, or functions from the number of an epoch (from 1) to an iterable. Training data with a length are
    shuffled, in an order determined by ``seed`` and the epoch, unless ``shuffle`` is False.

    ``metric`` is one of the Loss's, or "loss"; of several losses with names, "mood.accuracy" or "mood.loss". It is
    measured on ``valid``, or on ``train`` without it; "train_loss" and "valid_loss" say which. ``callbacks`` are called
    in order (see `Callback`); ``progress`` shows the display of ``ampnet train``. ``barrier``: each stream waits for
    the one before, and each epoch ends with nothing in flight. Streams have the names "train 1", "valid 1" and so on.

    ``checkpoint`` says where and when checkpoints are written. ``resume``: True continues from the last one in its
    folder, "auto" does so if there is one, a path from that one. Settings that decide the result must be those of the
    run's beginning; ``epochs``, ``target``, callbacks and the runtime may differ. With `Inline` and checkpoints at
    drained points, a resumed run equals one that was not interrupted, to the bit. A finished run only returns its
    result.

    An interrupt (Ctrl-C) is raised as `FitInterrupted`, which carries the result so far; an exception in a callback as
    `CallbackError`, which names it.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be 1 or more, got {epochs}")
    _check_runtime(runtime)
    graph = getattr(runtime, "graph", None)
    check_metric(metric, None if graph is None else metric_names(graph), valid is not None)
    kind, bare = split_name(metric)
    if higher_is_better is None:
        higher_is_better = not is_loss(bare)
    if higher_is_better and is_loss(bare):
        raise ValueError("a higher loss is not better: leave higher_is_better out, or give another metric")
    if isinstance(callbacks, Callback):
        raise TypeError(f"callbacks is a list: callbacks=[{type(callbacks).__name__}(...)]")
    given = list(callbacks)
    if progress:
        from ampnet.fitting.shown import Shown

        given.append(Shown())
    called = Callbacks(given)
    sources = {"train": source_of(train, runtime, shuffle=shuffle, seed=seed, epochs=epochs, name="train")}
    if valid is not None:
        sources["valid"] = source_of(valid, runtime, shuffle=False, seed=seed, epochs=epochs, name="valid")
    totals = {name: length_of(data) for name, data in (("train", train), ("valid", valid)) if name in sources}
    loop = Epochs(
        runtime, sources, epochs, metric, target, 1 if higher_is_better else -1, called, clock, clock(),
        at_rest=barrier or called.at_rest, name=bare, by_train=kind == "train" or valid is None,
    )  # fmt: skip
    found = resuming.find(checkpoint, resume)
    begins = left = None
    if checkpoint is not None or found is not None:
        _check_can_save(runtime)
        given_data = {"train": train} | ({} if valid is None else {"valid": valid})
        described = resuming.describe(runtime, given_data, checkpoint, seed=seed, shuffle=shuffle, metric=metric)
        if found is not None:
            with resuming.reading(found):
                resuming.check(found, described)
                loop.restore(found.data["fit"], found.path)
                loop.generators, left = found.data["generators"], resuming.left_of(found)
                runtime.restore(Snapshot(dict(found.tensors), found.data["runtime"]))  # type: ignore[attr-defined]
                set_generators(loop.generators)
            begins = str(loop.resumed)
        elif resume and checkpoint is not None:
            begins = f"no checkpoint in {checkpoint.folder}: training from the start"
        if checkpoint is not None:
            loop.saver = Saver(checkpoint, cast("Any", runtime), described, called, loop.state, left=left)
    history = tuple(loop.records.values())
    run = Run(runtime, epochs, metric, totals, loop.stop, loop.interrupt, loop.resumed, history, begins)
    try:
        if loop.saver is not None and not loop.is_over():
            loop.saver.begin()
        called.call("on_begin", run)
        if found is not None:
            with resuming.reading(found):
                called.restore(unpack(found.data["callbacks"], found.tensors))
            set_generators(loop.generators)
        try:
            with nullcontext() if loop.saver is None else first_ctrl_c(loop.interrupt):
                loop.go()
        except KeyboardInterrupt as interrupt:
            called.call("on_end", loop.result())
            raise FitInterrupted(loop.result()) from interrupt
        called.call("on_end", loop.result())
    except BaseException:
        with suppress(CallbackError):  # the first error counts
            called.close()
        raise
    finally:
        if loop.saver is not None:
            loop.saver.close()
    called.close()
    return loop.result()


def _check_can_save(runtime: Any) -> None:
    if not hasattr(runtime, "snapshot"):
        raise TypeError(
            f"checkpoints need a runtime with snapshots, like ampnet.Inline; got a {type(runtime).__name__}"
        )


def _check_runtime(runtime: Any) -> None:
    """Raise an error for a model or a graph instead of a runtime, and for a runtime that updates nothing."""
    if not hasattr(runtime, "run"):
        raise TypeError(
            f"fit takes a runtime, got a {type(runtime).__name__}: "
            f"ampnet.Inline(ampnet.compile(model, *example), update=ampnet.Update(...))"
        )
    graph = getattr(runtime, "graph", None)
    trained = [] if graph is None else list(graph.parameterised().values())
    if trained and all(node.updater.policy is None for node in trained):
        raise ValueError(
            "this runtime has no optimizer, so training would change no weights: make it with "
            "update=ampnet.Update(partial(torch.optim.Adam, lr=1e-3))"
        )
