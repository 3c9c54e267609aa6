"""Profile: the time of every node in kernels, bookkeeping, waiting and copies; and the remaining time of every process.

    with ampnet.Inline(graph, update=update, max_active_keys=64) as runtime:
        print(table(profile(runtime, instances, seconds=4)))

The command line has it as ``ampnet profile``. A run that is not profiled pays nothing.
"""

from ampnet.profile.result import SEVERAL, NodeProfile, OperatorUse, ProcessProfile, Profile, Stretch
from ampnet.profile.run import profile
from ampnet.profile.table import SORTS, table

__all__ = ["SEVERAL", "SORTS", "NodeProfile", "OperatorUse", "ProcessProfile", "Profile", "Stretch", "profile", "table"]
