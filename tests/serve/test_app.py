"""The HTTP interface: right results, every kind of bad request, limits, and that none of them changes anything."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
import torch

from ampnet import Inline, Seq, serve
from ampnet.serve.body import Refused
from ampnet.serve.guard import CLIENTS, RequestGuard, find_token, is_loopback
from ampnet.serve.serving import Serving
from tests.serve.asking import ask, asked, post, reader, served, update


def test_predictions_are_those_of_the_runtime() -> None:
    with Inline(reader(), update=update(), max_active_keys=4) as runtime:
        runtime.train([(Seq(torch.tensor([1, 2])), torch.tensor(0))] * 8)
        given = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1]]
        expected = runtime.predict([(Seq(torch.tensor(one)), None) for one in given])
        with serve(runtime, port=None) as serving:
            got = ask(serving, *({"tokens": one} for one in given))
    assert got.status_code == 200
    assert torch.allclose(torch.tensor(got.json()["predictions"]), torch.stack(expected))
    assert got.json()["weights"] == {"epoch": None, "updates": 2}


BAD: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, "not JSON"),
    ("no json", b"{", 400, "not JSON"),
    ("not utf-8", b'{"instances": ["\xff"]}', 400, "not UTF-8 (byte"),
    ("bom", b'\xef\xbb\xbf{"instances": []}', 400, "not JSON"),
    ("nan", b'{"instances": [{"tokens": [NaN]}]}', 400, "JSON has no NaN"),
    ("infinity", b'{"instances": [{"tokens": [-Infinity]}]}', 400, "JSON has no -Infinity"),
    ("deep", b"[" * 100_000, 400, "nested too deep"),
    ("deep instance", b'{"instances": [{"tokens": ' + b"[" * 500 + b"]" * 500 + b"}]}", 422, "expected an integer"),
    ("digits", b'{"instances": [{"tokens": [' + b"9" * 5000 + b"]}]}", 400, "too many digits"),
    ("huge", b'{"instances": [{"tokens": [99999999999999999999]}]}', 422, "is no int64"),
    ("list", b"[]", 400, "expected a JSON object"),
    ("unknown", b'{"instances": [], "model": 3}', 400, "unknown item 'model'"),
    ("no list", b'{"instances": {}}', 400, "is no list"),
    ("none", b'{"instances": []}', 422, "is empty"),
    ("twice", b'{"instances": [{"tokens": [1], "tokens": [2]}]}', 400, "key 'tokens' twice"),
    (
        "second",
        b'{"instances": [{"tokens": [1]}, {"tokens": [[1]]}]}',
        422,
        "instance 1: tokens[0]: expected an integer",
    ),
    ("surrogate", b'{"instances": [{"\\ud800": 1}]}', 422, "instance 0: there is no"),
]


@pytest.fixture(scope="module")
def serving() -> Any:
    with served() as made:
        yield made


@pytest.mark.parametrize(("body", "status", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_body_is_refused_with_a_reason(serving: Serving, body: bytes, status: int, text: str) -> None:
    response = post(serving, body)
    assert response.status_code == status
    assert text in response.json()["error"]
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "multipart/form-data"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"content_type": "application/json; charset=utf-8"}, 200),
        ({"content_type": "APPLICATION/JSON"}, 200),
    ],
)
def test_the_type_of_the_body(serving: Serving, headers: dict[str, str], status: int) -> None:
    assert post(serving, b'{"instances": [{"tokens": [1]}]}', **headers).status_code == status


def test_an_index_beyond_a_table_is_found_and_disturbs_no_other_request(serving: Serving) -> None:
    bodies = [{"json": {"instances": [{"tokens": [1, 2]}, {"tokens": [3, number]}]}} for number in (4, 999, 5, -7, 6)]
    before = state(serving)
    got = asked(serving.app.asgi, bodies)
    assert [response.status_code for response in got] == [200, 422, 200, 422, 200]
    assert got[1].json()["instance"] == 1
    assert "embedding" in got[1].json()["error"]
    assert "Traceback" not in got[1].text
    assert ".py" not in got[1].text
    assert state(serving) == before


def state(serving: Serving) -> list[Any]:
    """Weights and queues of the runtime that is served."""
    owner = serving._player._beside._owner  # type: ignore[attr-defined]
    weights = [parameter.tolist() for parameter in owner.graph.model.parameters()]
    return [weights, owner.held(), serving._player._beside._inner.held()]  # type: ignore[attr-defined]


def test_many_requests_are_few_batches() -> None:
    """50 requests ──> a full batch of 32, and one of 18 when it has waited long enough"""
    with served() as made:
        made.desk.most, made.desk.wait = 32, 0.2
        given = [[i % 20, (i * 7) % 20] for i in range(50)]
        runtime = made._player._beside._owner  # type: ignore[attr-defined]
        expected = runtime.predict([(Seq(torch.tensor(one)), None) for one in given])
        before = made.desk.batches
        got = asked(made.app.asgi, [{"json": {"instances": [{"tokens": one}]}} for one in given])
        assert [r.status_code for r in got] == [200] * 50
        assert made.desk.batches - before <= 4
        found = torch.tensor([r.json()["predictions"][0] for r in got])
        assert torch.allclose(found, torch.stack(expected))


def test_a_result_that_is_not_finite_is_null_and_listed() -> None:
    graph = reader()
    with torch.no_grad():
        graph.model.embedding.weight[3] = torch.inf
    with served(graph) as made:
        got = ask(made, {"tokens": [1]}, {"tokens": [3]})
    assert got.status_code == 200
    body = json.loads(got.text, parse_constant=lambda name: pytest.fail(name))
    assert body["not_finite"] == [1]
    assert body["predictions"][1] == [None] * 5


def test_a_large_body_is_refused_without_reading_it() -> None:
    with served(max_body=1000) as made:
        read: list[int] = []

        async def chunks() -> Any:
            for part in range(1000):
                read.append(part)
                yield b" " * 300

        headers = {"content-type": "application/json"}
        got = asked(made.app.asgi, [{"content": chunks(), "headers": headers}])[0]
        assert got.status_code == 413
        asked_for = asked(made.app.asgi, [{"content": b"1" * 1001, "headers": headers}])[0]
        assert asked_for.status_code == 413
        assert asked_for.headers["connection"] == "close"
        assert post(made, b"1" * 1000).status_code == 400


def test_a_request_with_too_many_instances_and_a_full_desk() -> None:
    with served() as made:
        made.desk.queued = 3
        got = asked(made.app.asgi, [{"json": {"instances": [{"tokens": [1]}] * n}} for n in (1025, 4)])
        assert [r.status_code for r in got] == [422, 503]
        assert got[1].headers["retry-after"] == "1"


def test_a_request_whose_time_is_over_is_not_played() -> None:
    with served(seconds=0.05) as made:
        made.desk.wait = 1.0
        got = ask(made, {"tokens": [1]})
        assert got.status_code == 504
        assert made.desk.batches == 0


def test_requests_that_wait_at_the_end_get_503() -> None:
    with served() as made:
        made.desk.wait = 60.0

        async def both() -> httpx.Response:
            transport = httpx.ASGITransport(app=made.app.asgi)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                task = asyncio.create_task(http.post("/predict", json={"instances": [{"tokens": [1]}]}))
                while not made.desk.waiting:
                    await asyncio.sleep(0)
                await asyncio.to_thread(made.stop)
                return await task

        got = asyncio.run(both())
        assert got.status_code == 503
        assert "the server ends" in got.json()["error"]
        assert ask(made, {"tokens": [1]}).status_code == 503
        assert asked(made.app.asgi, [{"method": "GET", "url": "/healthz"}])[0].status_code == 503


def test_other_paths_and_methods(serving: Serving) -> None:
    tried = [("GET", "/predict", 405), ("POST", "/", 405), ("GET", "/../etc/passwd", 404), ("GET", "/healthz", 200)]
    got = asked(serving.app.asgi, [{"method": method, "url": url} for method, url, _ in tried])
    assert [r.status_code for r in got] == [status for *_, status in tried]
    assert all(r.headers["x-content-type-options"] == "nosniff" for r in got)
    assert not any("access-control-allow-origin" in r.headers for r in got)


def test_hosts_of_other_names_are_refused(serving: Serving) -> None:
    names = ["127.0.0.1", "localhost:8000", "[::1]:80", "LOCALHOST", "evil.example", "127.0.0.1.evil.example", ""]
    got = asked(serving.app.asgi, [{"method": "GET", "url": "/", "headers": {"host": name}} for name in names])
    assert [r.status_code for r in got] == [200, 200, 200, 200, 403, 403, 403]


def test_rates_are_counted_for_each_client() -> None:
    now = 0.0
    guard = RequestGuard(names=None, rate=2.0, clock=lambda: now)
    for _ in range(4):
        guard.check("/", "10.0.0.1", [], None)
    with pytest.raises(Refused) as refused:
        guard.check("/", "10.0.0.1", [], None)
    assert refused.value.status == 429
    assert refused.value.headers == {"Retry-After": "1"}
    guard.check("/", "10.0.0.2", [], None)
    now = 0.6
    guard.check("/", "10.0.0.1", [], None)
    for number in range(CLIENTS + 10):
        guard.check("/", f"client {number}", [], None)
    assert len(guard._buckets) == CLIENTS
    for _ in range(4):
        guard.check("/", "2001:db8::1", [], None)
    with pytest.raises(Refused):
        guard.check("/", "2001:db8::2", [], None)  # the same network


def test_a_token_is_needed_and_compared_whole() -> None:
    secret = "s" * 20
    with served() as made:
        made.app.guard = RequestGuard(token=secret)
        basic = base64.b64encode(f"me:{secret}".encode()).decode()
        tried = [
            (None, 401),
            (f"Bearer {secret}", 200),
            (f"bearer {secret}", 200),
            (f"Basic {basic}", 200),
            (f"Bearer {secret}x", 401),
            ("Bearer ", 401),
            ("Basic !!", 401),
            (f"Digest {secret}", 401),
            ("Bearer \xe9", 401),
        ]
        got = asked(
            made.app.asgi,
            [
                {
                    "method": "GET",
                    "url": "/stats",
                    "headers": {} if a is None else {"authorization": a.encode("latin-1")},
                }
                for a, _ in tried
            ],
        )
        assert [r.status_code for r in got] == [status for _, status in tried]
        assert "Basic" in got[0].headers["www-authenticate"]
        assert asked(made.app.asgi, [{"method": "GET", "url": "/healthz"}])[0].status_code == 200
        assert (
            "$AMPNET_TOKEN"
            in asked(made.app.asgi, [{"method": "GET", "url": "/", "headers": {"authorization": f"Bearer {secret}"}}])[
                0
            ].text
        )


def test_where_tokens_come_from(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("AMPNET_TOKEN", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert find_token(None, wide=False) == (None, None)
    token, file = find_token(None, wide=True)
    assert token is not None
    assert file is not None
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == token
    assert find_token(file, wide=True) == (token, None)
    made, named = find_token(tmp_path / "mine", wide=False)
    assert named == tmp_path / "mine"
    assert find_token(named, wide=False) == (made, None)
    monkeypatch.setenv("AMPNET_TOKEN", "e" * 16)
    assert find_token(None, wide=False) == ("e" * 16, None)
    monkeypatch.setenv("AMPNET_TOKEN", "short")
    with pytest.raises(Exception, match="16 or more"):
        find_token(None, wide=False)
    file.chmod(0o644)
    find_token(file, wide=True)
    said = capsys.readouterr()
    assert "chmod 600" in said.err
    assert token not in said.out + said.err


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_the_document_and_the_page(serving: Serving) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    got = asked(serving.app.asgi, [{"method": "GET", "url": url} for url in ("/openapi.json", "/", "/stats")])
    document, page, stats = got[0].json(), got[1].text, got[2].json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    jsonschema.Draft202012Validator.check_schema(schemas["Instance"])
    request = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    resolved = json.loads(json.dumps({**schemas["Request"], "components": document["components"]}))
    jsonschema.Draft202012Validator(resolved).validate(request)
    response = ask(serving, *request["instances"])
    jsonschema.Draft202012Validator(schemas["Response"]).validate(response.json())
    assert "tokens" in page
    assert "curl" in page
    assert "http://" not in page.replace("http://127.0.0.1", "")
    assert "https://" not in page
    assert "script-src 'nonce-" in got[1].headers["content-security-policy"]
    assert stats["predictions"] >= 0
    assert set(stats["weights"]) == {"epoch", "updates"}


def test_the_page_is_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">&'
    with served(name=evil, about=evil) as made:
        page = asked(made.app.asgi, [{"method": "GET", "url": "/"}])[0].text
    assert evil not in page
    assert "&lt;img" in page


def test_an_error_of_the_server_is_logged_and_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with served() as made:
        monkeypatch.setattr(made.desk, "submit", lambda instances: 1 / 0)
        got = ask(made, {"tokens": [1]})
    assert got.status_code == 500
    assert "division" not in got.text
    assert "ZeroDivisionError" in capsys.readouterr().err
