"""Transport: frames between the processes of a run, and their carriers.

On one machine the carrier is a `Mesh` (shared memory); between machines each party has a `TcpEndpoint`. Both kinds of
endpoint have the same methods and guarantees.
"""

from ampnet.runtime.transport.endpoint import Endpoint
from ampnet.runtime.transport.frames import Frame, Note
from ampnet.runtime.transport.mesh import Mesh
from ampnet.runtime.transport.tcp import TcpEndpoint

AnyEndpoint = Endpoint | TcpEndpoint

__all__ = ["AnyEndpoint", "Endpoint", "Frame", "Mesh", "Note", "TcpEndpoint"]
