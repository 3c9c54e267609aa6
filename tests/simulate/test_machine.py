"""Machine: read from TOML; errors name the file and the entry."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampnet.errors import DataError
from ampnet.simulate.machine import BETWEEN, INSIDE, Hosts, Link, Machine, read_machine, this_machine

FULL = """
name = "two boxes"
[[hosts]]
count = 2
cores = 16
workers = 12
speed = 0.8
flops = "1T"
memory = "64GiB"
crowd = 0.1
[[hosts]]
cores = 4
[links.inside]
latency = "20us"
bandwidth = "3GB/s"
hop = "40us"
[links.between]
latency = 0.001
bandwidth = "10Gb/s"
[losses]
every = "1h"
restart = "500ms"
"""


def read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "box.toml"
    path.write_text(text, encoding="utf-8")
    return read_machine(path)


def test_every_entry(tmp_path: Path) -> None:
    boxes = Hosts(16, 2, 12, 0.8, 1e12, 64 * 2**30, 0.1)
    want = Machine("two boxes", (boxes, Hosts(4)), Link(2e-5, 3e9, 4e-5), Link(0.001, 1.25e9, BETWEEN.hop), 3600.0, 0.5)
    found = read(tmp_path, FULL)
    assert (found.between.latency, found.between.bandwidth) == (0.001, 1.25e9)
    assert found.inside == Link(pytest.approx(2e-5), 3e9, pytest.approx(4e-5))  # type: ignore[arg-type]
    assert (found.name, found.hosts, found.loss_every, found.restart) == (want.name, want.hosts, 3600.0, 0.5)
    assert (found.workers, found.cores) == (28, 36)
    seats = found.seats()
    assert [number for number, _ in seats] == [0] * 12 + [1] * 12 + [2] * 4
    assert seats[-1][1] == Hosts(4)


def test_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "[[hosts]]\ncores = 2\n") == Machine("box", (Hosts(2),), INSIDE, BETWEEN, math.inf, 5.0)


HOST = "[[hosts]]\ncores = 1\n"
FAULTS = {
    "": "entry hosts: write at least one",
    "hosts = 3": "entry hosts: write at least one",
    "hosts = [3]": "entry hosts: write at least one",
    "[[hosts]]\nspeed = 1": "entry hosts: it has no 'cores'",
    "[[hosts]]\ncores = 0": "entry hosts.cores: 0 is no whole number",
    "[[hosts]]\ncores = true": "entry hosts.cores",
    "[[hosts]]\ncores = 2.0": "entry hosts.cores",
    f"{HOST}[[hosts]]\ncores = 'x'": "entry hosts[1].cores",
    f"{HOST}core = 2": "entry hosts.core: there is no such entry; did you mean 'cores'?",
    f"{HOST}count = 100001": "entry hosts.count",
    f"{HOST}count = 100000\nworkers = 2": "room for 200,000 workers; at most 100,000",
    f"{HOST}speed = 0": "entry hosts.speed: 0 is no number above 0",
    f"{HOST}speed = nan": "entry hosts.speed",
    f"{HOST}speed = 1{'0' * 400}": "entry hosts.speed",
    f"{HOST}crowd = -1": "entry hosts.crowd",
    f"{HOST}memory = 64": 'entry hosts.memory: 64 is no size; write it like "64GB"',
    f"{HOST}memory = '64iB'": "entry hosts.memory",
    f"{HOST}memory = '1e307PB'": "entry hosts.memory",
    f"{HOST}flops = '0T'": "entry hosts.flops",
    f"{HOST}flops = 'fast'": "entry hosts.flops",
    f"{HOST}[links]\ninside = 3": "entry links.inside: 3 is no table; write [links.inside]",
    f"{HOST}[links.inside]\nlatency = 'soon'": "entry links.inside.latency: 'soon' is no time",
    f"{HOST}[links.between]\nbandwidth = '10'": "entry links.between.bandwidth",
    f"{HOST}[links.between]\nbandwidth = '0GB/s'": "entry links.between.bandwidth",
    f"{HOST}[links.outside]\nhop = 1": "entry links.outside: there is no such entry",
    f"{HOST}[losses]\nevery = 0": "entry losses.every: 0 is no time above 0",
    f"{HOST}[losses]\nevry = 1": "entry losses.evry: there is no such entry; did you mean 'every'?",
    f"name = ''\n{HOST}": "entry name",
    f'name = "a\\nb"\n{HOST}': "entry name",
    f"name = 3\n{HOST}": "entry name: 3 is no text",
    "hosts = ": "this is not TOML",
    f"{HOST}x = {'9' * 5000}": "",
    "a = " + 5000 * "[": "",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_with_file_and_entry(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'box.toml'}")
    assert FAULTS[text] in str(error.value).replace('"soon"', "'soon'")
    assert "\n" not in str(error.value)


def test_what_is_no_text_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not TOML in UTF-8"):
        read_machine(path)
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(DataError, match="more than 1,000,000 bytes"):
        read_machine(path)
    with pytest.raises(DataError, match="No such file"):
        read_machine(tmp_path / "none.toml")


VALUES = (
    st.integers()
    | st.floats()
    | st.booleans()
    | st.sampled_from(["64GB", "20us", "10Gb/s", "1T", "1e400s", "", "x"])
    | st.text("0123456789.e-+ kMGTPiBbus/", max_size=8)
)
NAMES = st.sampled_from(["cores", "count", "workers", "speed", "flops", "memory", "crowd", "latency", "bandwidth"])


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES), st.text(max_size=20))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_machine_or_an_error_that_names_the_file(
    tmp_path: Path, host: dict[str, object], link: dict[str, object], tail: str
) -> None:
    lines = ["[[hosts]]", *(f"{name} = {written(value)}" for name, value in ({"cores": 1} | host).items())]
    lines += ["[links.between]", *(f"{name} = {written(value)}" for name, value in link.items()), tail]
    path = tmp_path / "box.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    found, fault = None, str(path)
    try:
        found = read_machine(path)
    except DataError as error:
        fault = str(error)
    assert fault.startswith(str(path))
    if found is not None:
        assert found.workers >= 1
        assert found.between.bandwidth > 0
        assert 0 <= found.between.latency < math.inf


def test_room_for_more_workers() -> None:
    one = Machine("one", (Hosts(2),))
    assert one.with_workers(2) is one
    assert one.with_workers(5).hosts == (Hosts(2, workers=5),)
    with pytest.raises(DataError, match="'two' has room for 4 workers, and 5 are asked for"):
        Machine("two", (Hosts(2, 2),)).with_workers(5)
    assert this_machine().workers == this_machine().cores >= 1
