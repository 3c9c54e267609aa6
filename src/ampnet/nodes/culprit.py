"""Culprit: which message of a batch makes a node fail, found by halving."""

from __future__ import annotations

import torch

from ampnet.message import Messages
from ampnet.nodes.node import Node


def culprit(node: Node, messages: Messages) -> Messages:
    """The first message that fails alone; all of them where none does, or where the node cannot be tried."""
    suspects = messages
    while True:
        half = suspects.slice(0, max(1, len(suspects) // 2))
        try:
            with torch.no_grad():
                if not node.probe(half):
                    return messages
        except Exception:
            if len(half) == 1:
                return half
            suspects = half
            continue
        if len(suspects) == 1:
            return messages
        suspects = suspects.slice(len(half), len(suspects))
