"""With real sockets: addresses, bad HTTP, the end of a server; and the commands."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ampnet import Inline, serve
from ampnet.cli import main
from ampnet.errors import AmpnetError
from ampnet.serve.serving import Serving
from tests.serve.asking import reader, update

BODY = json.dumps({"instances": [{"tokens": [1, 2, 3]}]})
HEADERS = {"Content-Type": "application/json"}


def http_to(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]), timeout=60)


def sent(
    address: str, method: str = "POST", path: str = "/predict", body: Any = BODY, **headers: str
) -> tuple[int, Any]:
    connection = http_to(address)
    connection.request(method, path, body, {**HEADERS, **headers})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text.decode()


@pytest.fixture(scope="module")
def serving() -> Any:
    with Inline(reader(), update=update()) as runtime, serve(runtime, rate=None) as made:
        yield made


def test_requests_over_a_socket(serving: Serving) -> None:
    status, answer = sent(serving.address)
    assert status == 200
    assert len(answer["predictions"][0]) == 5
    assert sent(serving.address, Host="evil.example")[0] == 403
    assert sent(serving.address, "GET", "/", None)[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, gzip\r\n\r\n{",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_bad_http_is_refused(serving: Serving, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(serving.address.rstrip("/").rpartition(":")[2])), 60) as there:
        there.sendall(raw)
        there.shutdown(socket.SHUT_WR)
        said = b""
        while part := there.recv(65536):
            said += part
    assert said == b"" or int(said.split()[1]) in (400, 403, 413)
    assert b"Traceback" not in said
    assert sent(serving.address)[0] == 200


def test_a_port_in_use_and_bad_addresses(serving: Serving) -> None:
    with Inline(reader()) as runtime:
        with pytest.raises(OSError):
            serve(runtime, port=int(serving.address.rstrip("/").rpartition(":")[2]))
        with pytest.raises(AmpnetError, match="no address to listen on"):
            serve(runtime, host="example.org")
        assert runtime.beside is None
        with serve(runtime) as other:  # nothing is left of the failures
            assert sent(other.address)[0] == 200


def test_an_address_for_others_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("AMPNET_TOKEN", raising=False)
    with Inline(reader()) as runtime, serve(runtime, host="0.0.0.0") as made:
        assert made.token_file is not None
        token = made.token_file.read_text().strip()
        assert sent(made.address)[0] == 401
        assert sent(made.address, Authorization=f"Bearer {token}", Host="any.example")[0] == 200
        assert sent(made.address, "GET", "/healthz", None)[0] == 200
    assert list(tmp_path.iterdir()) == []
    printed = capfd.readouterr()
    assert token not in printed.out + printed.err


def test_the_end_lets_requests_in_progress_finish() -> None:
    """[1] a request waits for its batch  [2] the server is to finish  [3] the batch is played  [4] it is answered"""
    with Inline(reader()) as runtime, serve(runtime) as made:
        made.desk.wait, made.desk.most = 1e9, 2
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(sent(made.address)))
        thread.start()
        while not made.desk.waiting:  # [1]
            os.sched_yield()
        assert made.server is not None
        made.server.finish()  # [2]
        made.desk.submit([made.app.form.read({"tokens": [1]})[0]])  # [3]
        thread.join()
        assert found[0][0] == 200  # [4]
    with pytest.raises(ConnectionRefusedError):
        sent(made.address)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with Inline(reader()) as runtime, pytest.raises(AmpnetError, match="ampnet\\[serve\\]"):
        serve(runtime)


SMALL = ["train", "list-reduction", "--train-size", "300", "--valid-size", "40", "--epochs", "2", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and checkpoints, served while they were made."""
    folder = tmp_path_factory.mktemp("trained")
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:

        def tell(made: Serving) -> None:
            thread = threading.Thread(
                target=lambda: found.append(sent(made.address, body='{"instances": ["len 1 2 3"]}'))
            )
            thread.start()
            patch.setattr(made, "stop", lambda stop=made.stop: (thread.join(), stop()))

        patch.setattr("ampnet.cli.serve.tell", tell)
        files = ["--save", str(folder / "lists.safetensors"), "--checkpoint-dir", str(folder / "run")]
        assert main([*SMALL, *files, "--serve"]) == 0
    ((status, answer),) = found
    assert status == 200
    assert answer["predictions"][0]["input"] == "length 1 2 3"
    return folder


def test_serve_a_checkpoint_until_a_signal(trained: Path) -> None:
    command = [sys.executable, "-m", "ampnet", "serve", str(trained / "run"), "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(f"checkpoint: {trained / 'run'}/checkpoint-")
        address = process.stdout.readline().split()[-1]
        status, answer = sent(address, body='{"instances": ["range 3 7 1", {"tokens": [11, 3, 4]}]}')
        assert status == 200
        assert answer["weights"] == {"epoch": 2, "updates": None}
        assert sent(address, body='{"instances": ["/etc/passwd"]}')[0] == 422
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert err == ""


@pytest.mark.parametrize("what", ["lists.safetensors", "run"])
def test_serve_in_this_process(trained: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(made: Serving, asked: Any) -> None:
        over = threading.Event()
        found: list[Any] = []

        def client() -> None:
            found.append(sent(made.address, body='{"instances": ["range 3 7 1"]}'))
            over.set()

        thread = threading.Thread(target=client)
        thread.start()
        real(made, over.is_set)
        thread.join()
        assert found[0][0] == 200
        assert set(found[0][1]["predictions"][0]) == {"input", "result", "probabilities"}

    real = Serving.run
    monkeypatch.setattr(Serving, "run", run)
    assert main(["serve", str(trained / what), "--port", "0"]) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["."], "there is no checkpoint in this folder"),
        ([__file__], "not a model that 'ampnet train ... --save' wrote"),
        ([__file__, "--port", "99999"], "a port is a number from 0 to 65535"),
    ],
)
def test_errors_of_the_command(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *words]) in (1, 2)
    assert text in capsys.readouterr().err


def test_a_port_in_use_is_an_error_before_any_training(capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*SMALL, "--serve", str(taken.getsockname()[1])]) == 2
    assert "--serve: port" in capsys.readouterr().err
