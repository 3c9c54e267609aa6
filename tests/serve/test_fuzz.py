"""10,000 mutated requests: each gets a right result or a 4xx with a reason, and nothing changes.

valid request ──> a change in its structure, or in its bytes ──> the application, 40 at a time
"""

from __future__ import annotations

import asyncio
import json
import random
from functools import cache
from typing import Any

import pytest
import torch

from ampnet.lang import Compiled
from ampnet.serve.serving import Serving
from tests import fuzz
from tests.serve.asking import Reader, graphs, reader, served
from tests.serve.test_app import state
from tests.serve.test_form import drawn, mutated

TOGETHER = 40
REFUSALS = {400, 413, 415, 422}
REQUESTS = {"rounds": 4_000, "sequence": 3_000, "tree": 1_000, "edges": 1_000, "odd": 1_000}
JUNK = (
    b"\x00",
    b"\xff\xfe",
    b"[" * 2000,
    b"]}",
    b'"',
    b"\\u",
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"-",
    b",,",
    b"9" * 30,
    b" ",
)
TYPES = ("application/json", "application/json", "application/json", "text/plain", "", "application/json;x=\xe9")


def bodies(kind: str, draw: random.Random) -> bytes:
    """A request: valid, with a change in its structure, or with changes in its bytes."""
    given: Any = {"instances": [drawn(kind, draw) for _ in range(draw.randint(1, 3))]}
    what = draw.random()
    if what > 0.8:
        return json.dumps(given).encode()
    for _ in range(draw.choice([1, 1, 2, 5])):
        given = mutated(given, draw)
    body = bytearray(json.dumps(given).encode())
    if what > 0.3:
        return bytes(body)
    if what < 0.03:
        return draw.randbytes(draw.randrange(200))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(body) + 1)
        change = draw.random()
        if change < 0.4 and at < len(body):
            body[at] = draw.randrange(256)
        elif change < 0.6:
            del body[at : at + draw.randrange(8)]
        else:
            body[at:at] = draw.choice(JUNK)
    return bytes(body)


async def called(app: Any, body: bytes, kind: str) -> tuple[int, bytes]:
    """Status and body of a response, without HTTP around it."""
    parts = [body[i : i + 700] for i in range(0, len(body), 700)] or [b""]
    incoming = [{"type": "http.request", "body": p, "more_body": p is not parts[-1]} for p in parts]
    out: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        out.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode("latin-1"))]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": "/predict", "raw_path": b"/predict", "query_string": b"", "root_path": "", "headers": headers}
    await app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
    return out[0]["status"], b"".join(message.get("body", b"") for message in out[1:])


async def tried(serving: Serving, requests: list[tuple[bytes, str]]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for start in range(0, len(requests), TOGETHER):
        some = requests[start : start + TOGETHER]
        found += await asyncio.gather(*(called(serving.app.asgi, body, kind) for body, kind in some))
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", REQUESTS)
def test_ten_thousand_mutated_requests(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    graph = reader() if kind == "sequence" else graphs()[kind]
    draw = random.Random(f"requests of {kind} {fuzz.seed()}")
    requests = [(bodies(kind, draw), draw.choice(TYPES)) for _ in range(REQUESTS[kind])]
    with served(graph, max_body=3000) as serving:
        serving.desk.wait = 0.0
        before = state(serving)
        found = asyncio.run(tried(serving, requests))
        assert state(serving) == before
    statuses = {status for status, _ in found}
    assert statuses <= {200, *REFUSALS}, statuses - {200, *REFUSALS}
    assert {200, 400, 415, 422} <= statuses
    for (body, _), (status, answer) in zip(requests, found, strict=True):
        said = json.loads(answer)
        if status != 200:
            assert set(said) - {"instance"} == {"error"}
            assert "Traceback" not in said["error"]
            assert ".py" not in said["error"]
        else:
            given = json.loads(body)["instances"]
            assert len(said["predictions"]) == len(given)
            if kind == "sequence":
                expected = [list(eager(graph, tuple(one["tokens"]))) for one in given]
                assert torch.allclose(torch.tensor(said["predictions"]), torch.tensor(expected), atol=1e-5)
    printed = capfd.readouterr()
    assert printed.err == ""


@cache
@torch.no_grad()
def eager(graph: Compiled, tokens: tuple[int, ...]) -> tuple[float, ...]:
    model = graph.model
    assert isinstance(model, Reader)
    h = torch.zeros(8)
    for token in tokens:
        h = model.cell(model.embedding(torch.tensor(token)), h)
    return tuple(model.classify(h).tolist())
