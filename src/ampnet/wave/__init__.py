"""Waves: whole instances computed in one go, from what is known of them beforehand. See `ampnet.wave.waves`."""

from ampnet.wave.lot import Lot
from ampnet.wave.sites import Unplayable
from ampnet.wave.waves import PlayedHalf, Waves

__all__ = ["Lot", "PlayedHalf", "Unplayable", "Waves"]
