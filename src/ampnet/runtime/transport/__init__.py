"""Transport: frames between the processes of a run, and their carriers. On one machine the carrier is a `Mesh`."""

from ampnet.runtime.transport.endpoint import Endpoint
from ampnet.runtime.transport.frames import Frame, Note
from ampnet.runtime.transport.mesh import Mesh

__all__ = ["Endpoint", "Frame", "Mesh", "Note"]
