"""The clients of `bench.serve`, in a process of their own that imports nothing large: PORT CLIENTS SECONDS."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time

BODY = json.dumps({"instances": [{"tokens": [12, 3, 7, 1, 4, 4, 9]}]})


def client(port: int, clients: int, seconds: float) -> None:
    """The process of the clients: prints what it found."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (began := time.perf_counter()) < until:
            connection.request("POST", "/predict", BODY, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took.sort()
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    print(json.dumps({"per_second": len(took) / seconds, "median_ms": 1e3 * took[len(took) // 2], "p99_ms": 1e3 * p99}))


if __name__ == "__main__":
    client(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
