"""Fingerprints: whether two instances have the same contents: states, structures and payloads.

Machines compare the data that each of them has read, and a resumed run compares its data with those before.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ampnet.instance import Instance
from ampnet.runtime.transport.dtypes import raw


def fingerprint(instance: Instance) -> int:
    """Returns a number of 64 bits, which differs if the contents do."""
    made = hashlib.blake2b(instance.digest(), digest_size=8)
    for given in instance.feeds.values():
        if given.payload is not None:
            coded, array = raw(given.payload)
            made.update(f"{coded.code} {array.shape}".encode())
            made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return int.from_bytes(made.digest(), "little", signed=True)
