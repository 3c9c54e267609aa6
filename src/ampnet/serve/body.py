"""Body: the bytes of a request become instances, or one error that names what is wrong; results become bytes.

    bytes ──UTF-8──> text ──JSON──> {"instances": [...]} ──Form──> an Instance each
      413              400            400, 422                       422: "instance 3: tokens[2]: expected an integer"

JSON is taken as its standard has it: no NaN, no Infinity, no key twice. A result that is not finite is written as null,
and its index is listed under "not_finite".
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from ampnet.errors import AmpnetError
from ampnet.instance import Instance
from ampnet.serve.form import Answer, Form


class Refused(Exception):
    """A request that gets an error response. ``status``: that of HTTP; ``more``: further items of the JSON body."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(text)
        self.status, self.text, self.more, self.headers = status, text, more, headers or {}


def instances_of(body: bytes, form: Form, most: int) -> list[tuple[Instance, Answer]]:
    """Returns the instances of a request of at most ``most``. Raises `Refused`."""
    given = parsed(body)
    if not isinstance(given, dict) or "instances" not in given:
        raise Refused(400, 'expected a JSON object {"instances": [...]}')
    if strange := [name for name in given if name != "instances"]:
        raise Refused(400, f"unknown item '{strange[0][:40]}': there is only 'instances'")
    listed = given["instances"]
    if not isinstance(listed, list):
        raise Refused(400, "'instances' is no list")
    if not listed:
        raise Refused(422, "'instances' is empty: there is nothing to predict")
    if len(listed) > most:
        raise Refused(422, f"{len(listed):,} instances; a request may have {most:,}: send several requests")
    out = []
    for number, one in enumerate(listed):
        try:
            out.append(form.read(one))
        except AmpnetError as error:
            raise Refused(422, f"instance {number}: {error}", instance=number) from None
        except RecursionError:
            raise Refused(422, f"instance {number}: nested too deep", instance=number) from None
    return out


def parsed(body: bytes) -> Any:
    """Returns the value of a JSON text. Raises `Refused` with status 400."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Refused(400, "the JSON is nested too deep") from None
    except ValueError as error:  # of this module, or an integer of more digits than Python converts
        text = str(error) if error.args and str(error).startswith("JSON ") else "a number has too many digits"
        raise Refused(400, text) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(items)
    if len(made) < len(items):
        twice = Counter(name for name, _ in items).most_common(1)[0][0]
        raise ValueError(f"JSON object with the key '{twice[:40]}' twice")
    return made


def answered(predictions: Sequence[Any], **more: Any) -> bytes:
    """Returns the JSON of a response with these predictions."""
    try:
        return dumped({"predictions": list(predictions), **more})
    except ValueError:
        bad = [number for number, one in enumerate(predictions) if _tidied(one) != one]
        return dumped({"predictions": [_tidied(one) for one in predictions], "not_finite": bad, **more})


def dumped(data: Any) -> bytes:
    """Returns data as JSON. Raises ValueError for a number that is not finite."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


def _tidied(data: Any) -> Any:
    """Returns plain data with null instead of numbers that are not finite."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {name: _tidied(one) for name, one in data.items()}
    return [_tidied(one) for one in data] if isinstance(data, list | tuple) else data
