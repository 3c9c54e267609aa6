"""RequestGuard: who may ask, and how often; decided before a request is read.

    Host header      on a loopback address, only names of this machine: a page of another site whose domain resolves to
                     127.0.0.1 (DNS rebinding) carries that domain here, and gets 403
    rate             a token bucket for each client address: 429 with Retry-After
    token            "Authorization: Bearer TOKEN", or the password of Basic, which browsers can ask for: 401

`/healthz` needs no token. There is no CORS header: pages of other sites cannot read a response, and their requests with
JSON are never sent. The client's address is that of the connection: headers of proxies are not believed.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import math
import os
import secrets
import stat
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from ampnet.errors import DataError
from ampnet.events.live.server import NAMES
from ampnet.serve.body import Refused

CLIENTS = 4096
"""The maximal number of addresses whose buckets are kept; the least recently seen are dropped."""
LENGTH = 16
"""The minimal number of characters of a token."""
VARIABLE = "AMPNET_TOKEN"
OPEN = ("/healthz",)
"""Paths that need no token."""


class RequestGuard:
    """Checks requests before they are read. See the head of this file."""

    def __init__(
        self,
        *,
        names: tuple[str, ...] | None = NAMES,
        token: str | None = None,
        rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``names``: allowed in the Host header; None: any. ``rate``: requests a second of a client, in the long run;
        twice as many may come at once. None: no limit."""
        self._names, self._token, self.rate, self._clock = names, None if token is None else token.encode(), rate, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: the requests left, and when they were counted."""

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return self._token is not None

    def check(self, path: str, client: str, hosts: list[str], authorization: str | None) -> None:
        """Raise `Refused` if the request is not allowed. ``hosts``: its Host headers."""
        if self._names is not None and (len(hosts) != 1 or _name(hosts[0]) not in self._names):
            raise Refused(403, "this server answers to names of this machine only; the Host header has another one")
        self._spend(client)
        if self._token is not None and path not in OPEN and not self._may(authorization):
            asks = {"WWW-Authenticate": 'Bearer realm="ampnet", Basic realm="ampnet"'}
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN", asks)

    def _may(self, authorization: str | None) -> bool:
        assert self._token is not None
        kind, _, given = (authorization or "").partition(" ")
        secret = given.strip().encode("utf-8", "replace")
        if kind.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, self._token)

    def _spend(self, client: str) -> None:
        if self.rate is None:
            return
        key, now, most = _network(client), self._clock(), max(1.0, 2 * self.rate)
        left, at = self._buckets.pop(key, (most, now))
        left = min(most, left + (now - at) * self.rate)
        self._buckets[key] = (max(0.0, left - 1), now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            after = max(1, math.ceil((1 - left) / self.rate))
            raise Refused(429, f"more than {self.rate:g} requests a second", {"Retry-After": str(after)})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. Names other than localhost are not looked up: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str) -> tuple[str, ...] | None:
    """Returns the names in a Host header that an address is asked by; None: any."""
    return (*NAMES, host) if is_loopback(host) else None


def find_token(file: Path | None, wide: bool) -> tuple[str | None, Path | None]:
    """Returns the token, and the file that was written for it, if any.

    It is read from ``file`` or from the environment. If there is none and the address is a ``wide`` one, a token is
    made and written to ``file``, or to a new file that only this user can read. It is never printed.
    """
    if file is not None and file.exists():
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            print(f"ampnet: {file} can be read by other users; chmod 600 {file} prevents that", file=sys.stderr)
        return _checked(file.read_text(encoding="utf-8", errors="replace").strip(), str(file)), None
    if file is None and (given := os.environ.get(VARIABLE)):
        return _checked(given.strip(), f"${VARIABLE}"), None
    if file is None and not wide:
        return None, None
    token = secrets.token_urlsafe(32)
    if file is None:
        descriptor, name = tempfile.mkstemp(prefix="ampnet-", suffix=".token")
        file = Path(name)
    else:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(token + "\n")
    return token, file


def _checked(token: str, where: str) -> str:
    if len(token) < LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise DataError(f"{where}: a token has {LENGTH} or more ASCII characters and no spaces; this one has not")
    return token


def _name(host: str) -> str:
    """Returns the name of a Host header, without its port."""
    name, colon, port = host.strip().rpartition(":")
    return (name if colon and port.isdecimal() else host.strip()).lower()


def _network(client: str) -> str:
    """Returns the address that a rate is counted for: of IPv6, the network of 64 bits that one client has."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:  # a client of IPv4, on a socket of IPv6
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return client
