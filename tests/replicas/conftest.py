"""Nothing is left behind by worker processes (promises P5 and P13)."""

from tests.runtime.conftest import nothing_is_left_behind

__all__ = ["nothing_is_left_behind"]
