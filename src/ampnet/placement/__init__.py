"""Placement: which worker hosts which node, and what that is expected to give.

costs      what a wave costs, node by node, and what crosses between them
trial      measures it, in waves, on a copy of the graph
flows      who reads whose rows, read off the layouts of waves
units      nodes that have to share a worker to stay cheap
memory     bytes that a node needs where it is hosted
cut        shares out units among workers
place      a worker for every node: by hand, by replica, or by cost
expect     the speed of a cut, or of replicas, against one core
ways       workers, replicas and tiles that a model could be run with, and the best of them
"""

from ampnet.placement.costs import Costs, Flow, Made
from ampnet.placement.expect import Expectation, expect
from ampnet.placement.place import by_hand, known, place
from ampnet.placement.trial import Trial, peek

__all__ = ["Costs", "Expectation", "Flow", "Made", "Trial", "by_hand", "expect", "known", "peek", "place"]
