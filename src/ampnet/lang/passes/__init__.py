"""Passes: transformations of a model's protos before they become nodes. None changes a gradient; each can be disabled.

remove_dead     values that no loss depends on are not computed
fuse_linear     an activation that follows a Linear is computed in its node
fuse_loops      the control of a loop becomes one node
fuse_rows       chains of row-wise operations become one node
"""

from __future__ import annotations

from ampnet.lang.passes.dead import remove_dead
from ampnet.lang.passes.linear import fuse_linear
from ampnet.lang.passes.loops import fuse_loops
from ampnet.lang.passes.rows import fuse_rows

__all__ = ["fuse_linear", "fuse_loops", "fuse_rows", "remove_dead"]
