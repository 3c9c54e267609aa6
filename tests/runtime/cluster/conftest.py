"""One Ray for all tests of a module, on this machine. Its processes are there before and after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ampnet.runtime.cluster.connection import Connection


@pytest.fixture(scope="module")
def local_ray() -> Iterator[Connection]:
    connection = Connection("local", 3)
    yield connection
    connection.close()
