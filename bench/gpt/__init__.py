"""A small GPT as a pipeline of four processes: asynchronous (ours) beside `torch.distributed.pipelining`.

    1f1b    F1 F2 F3 F4 B1 .. B2 .. B3 .. B4 | step | F5 F6 ...       flushed: between steps the pipeline runs empty
    gpipe   F1 F2 F3 F4 ......... B1 B2 B3 B4 | step | F5 F6 ...      likewise, forwards first
    ours    F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 ...                   never: a stage updates itself after its fourth B

Equal for all: the modules (`examples.gpt`), their initial weights, the cut into stages, the microbatches and their
order, the microbatches in an update, AdamW and its rate, float32, one thread for each process, the cores that a process
may use. Ours uses in each backward the weights of its forward (``weights="stash"``), and no remedy for staleness.

    settings      what is run
    asynchronous  ours: `Processes`
    pipelining    torch's schedules, over gloo
    turn          one run in a process of its own; the held-out loss of its snapshots
    result        speeds, bubbles, losses at equal tokens and at equal seconds; what is asked for
    picture       loss against tokens and against seconds
    cores         the processors of each stage
    orphans       no stage outlives the command

``python -m bench.gpt`` runs all of it.
"""
