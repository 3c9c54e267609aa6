"""How the processes of a run talk: frames, and what carries them. Between the processes of one machine: a `Mesh`."""

from ampnet.runtime.transport.endpoint import Endpoint
from ampnet.runtime.transport.frames import Frame, Note
from ampnet.runtime.transport.mesh import Mesh

__all__ = ["Endpoint", "Frame", "Mesh", "Note"]
