"""Fit: the training loop and its callbacks.

    best = BestWeights("accuracy")
    result = ampnet.fit(runtime, train=samples, valid=others, epochs=20, callbacks=[best, CSVLogger("run.csv")])

`ampnet.fitting.loop` is `fit`, `ampnet.fitting.epochs` its loop; every callback has its own file. Checkpoints:
`checkpointing` (settings), `saving`, `resuming`.
"""

from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.checkpointing import Checkpoint
from ampnet.fitting.loggers import CSVLogger, TensorBoardLogger
from ampnet.fitting.loop import fit
from ampnet.fitting.rates import LearningRate
from ampnet.fitting.records import EpochRecord, FitInterrupted, FitResult, Resumed
from ampnet.fitting.stopping import EarlyStopping
from ampnet.fitting.weights import BestWeights

__all__ = [
    "BestWeights",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "EpochRecord",
    "FitInterrupted",
    "FitResult",
    "LearningRate",
    "Resumed",
    "Run",
    "TensorBoardLogger",
    "fit",
]
