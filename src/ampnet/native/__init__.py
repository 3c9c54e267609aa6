"""Native kernels: what waves compute on a CPU, compiled for the processor at hand.

    build       compile the sources once, keep the result in the cache folder, load it
    calls       functions on tensors: products, gates of recurrent cells, rows fetched, added back and summed up
    source/     the kernels, in C++

torch computes the same with several calls for each gate, and on some processors (AMD's with AVX-512) multiplies at half
speed. Every function of `calls` says whether it computed: where it did not (another device, another type of numbers, no
compiler), its caller computes with torch, and `state` says why.
"""

from __future__ import annotations

from ampnet.native.build import disabled, state

__all__ = ["disabled", "state"]
