"""Trains the GPT as an asynchronous pipeline of worker processes: ``python -m examples.gpt``, from the repository.

    worker 0   F1 F2 F3 F4    B1 F5    B2 F6    B3 F7 ...    F5: forward of microbatch 5, B1: backward of microbatch 1
    worker 1      F1 F2 F3 B1    F4 B2    F5 B3    F6
    worker 2         F1 F2 B1 F3    B2 F4    B3 F5 ...       a worker updates its blocks after every fourth backward, at
    worker 3            F1 B1    F2 B2    F3 B3              once: the pipeline is never drained for an update

A microbatch may meet newer weights in its backward than in its forward. With ``weights="stash"`` the backward uses
those of its forward. How that compares with synchronous pipelines: ``python -m bench.gpt``.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from examples.gpt.data import library
from examples.gpt.model import Gpt, Sizes, affinity, microbatch

import ampnet


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains, prints a line for each part, and returns the held-out loss before training and after each part."""
    args = _options(arguments)
    torch.manual_seed(args.seed)
    sizes = Sizes(args.blocks, args.width, args.heads, args.context)
    corpus, model = library(), Gpt(sizes)
    tokens, targets = corpus.held_out(args.held_out, sizes.context)
    graph = ampnet.compile(model, tokens[0], targets[0])
    update = ampnet.Update(
        partial(torch.optim.AdamW, lr=args.learning_rate), args.microbatches, "instances", weights="stash"
    )
    each = args.updates * args.microbatches
    batches = corpus.microbatches(args.parts * each, args.sequences, sizes.context, args.seed)
    valid = [
        microbatch(graph, x, y)
        for x, y in zip(tokens.split(args.sequences), targets.split(args.sequences), strict=True)
    ]
    weights = sum(p.numel() for p in model.parameters())
    print(f"{weights:,} weights; {len(corpus.train):,} characters to read, {len(corpus.valid):,} held out")
    with ampnet.Processes(
        graph,
        workers=args.workers,
        affinity=affinity(model, args.workers),
        update=update,
        max_active_keys=args.in_flight or args.workers + 1,
        wave_size=1,
    ) as runtime:
        losses = [runtime.infer(valid).loss]
        print(f"before training: held-out loss {losses[0]:.3f}")
        for part in range(1, args.parts + 1):
            began = time.perf_counter()
            trained = runtime.train(microbatch(graph, *next(batches)) for _ in range(each))
            speed = each * args.sequences * sizes.context / (time.perf_counter() - began)
            losses.append(runtime.infer(valid).loss)
            print(
                f"{part * args.updates:,} updates: loss {trained.loss:.3f}, held-out {losses[-1]:.3f}; "
                f"{speed:,.0f} tokens/s",
                flush=True,
            )
        print(runtime.stats().words())
    return losses


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.gpt", description=(__doc__ or "").splitlines()[0])
    add, sizes = parser.add_argument, Sizes()
    add("--workers", type=int, default=4, help="worker processes, a stage each (default: 4)")
    add("--parts", type=int, default=10, help="lines of progress (default: 10)")
    add("--updates", type=int, default=50, help="updates in each part (default: 50)")
    add("--microbatches", type=int, default=4, help="microbatches in an update (default: 4)")
    add("--sequences", type=int, default=2, help="sequences in a microbatch (default: 2)")
    add("--in-flight", type=int, help="microbatches in flight (default: 1 more than workers)")
    add("--blocks", type=int, default=sizes.blocks, help=f"transformer blocks (default: {sizes.blocks})")
    add("--width", type=int, default=sizes.width, help=f"numbers in a row (default: {sizes.width})")
    add("--heads", type=int, default=sizes.heads, help=f"heads of attention (default: {sizes.heads})")
    add("--context", type=int, default=sizes.context, help=f"characters of a sequence (default: {sizes.context})")
    add("--held-out", type=int, default=64, help="sequences for validation (default: 64)")
    add("--learning-rate", type=float, default=1e-3, help="of AdamW (default: 0.001)")
    add("--seed", type=int, default=0, help="of weights and order (default: 0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
