"""Tools for testing models, nodes and runtimes. Public: use them for your own nodes and graphs.

* `assert_transform`, `assert_gradients`: gradient oracles, plain autograd against the message path.
* `assert_compiled`: a model as it is compiled against the same model as it runs eagerly.
* `assert_predicts`: what `Runtime.predict` gives against what the model returns when it runs eagerly.
* `Scripted`: a schedule that serves nodes in the order you write down.
* `assert_at_rest`: nothing is left in any queue or cache, by name.
* `assert_kept` (from `ampnet.events`): the promises that can be read off an event log.
* `Proxy`: a TCP proxy that delays, cuts, resets, corrupts and swallows, for tests of what runs on several machines.
* `ampnet.testing.strategies`: random graphs, instances and schedules for Hypothesis.
* `ampnet.testing.written`: random models, with combinators inside of combinators, for Hypothesis or by a seed.
"""

from ampnet.testing.language import assert_compiled, assert_judged, compiled_gradients, model_gradients
from ampnet.testing.leaks import assert_at_rest
from ampnet.testing.oracle import assert_close, assert_gradients, assert_transform, graph_gradients
from ampnet.testing.predicted import assert_predicts
from ampnet.testing.proxy import Proxy
from ampnet.testing.schedules import Scripted, TickClock

__all__ = [
    "Proxy",
    "Scripted",
    "TickClock",
    "assert_at_rest",
    "assert_close",
    "assert_compiled",
    "assert_gradients",
    "assert_judged",
    "assert_predicts",
    "assert_transform",
    "compiled_gradients",
    "graph_gradients",
    "model_gradients",
]
