"""The paper's experiments, each described once: data set, model, settings, target, and input as people write it.

    from ampnet.experiments.catalog import WORKLOADS

``ampnet train``, ``ampnet evaluate`` and ``ampnet predict`` know no more of them than what is written here.
"""
