"""OpenAPI: the description of the interface, with the JSON schema of the model's arguments."""

from __future__ import annotations

from typing import Any

from ampnet._version import __version__
from ampnet.serve.form import Form

ERRORS = {
    "400": "the body is not the JSON expected",
    "401": "a token is needed",
    "403": "the Host header names another machine",
    "413": "the body is too large",
    "415": "the body is not application/json",
    "422": "an instance does not fit the model; 'instance' is its index",
    "429": "too many requests of this client; Retry-After says when to try again",
    "503": "too many instances wait, or the server ends",
    "504": "the time of the request is over",
}
"""The error responses of /predict."""


def document(form: Form, name: str, about: str, most: int) -> dict[str, Any]:
    """Returns the OpenAPI document. ``most``: the maximal number of instances in a request."""
    error = {"application/json": _json("#/components/schemas/Error")}
    {"summary": "Whether the server answers", "security": [], "responses": _fine("status")}
    predict = {
        "summary": "Predictions for instances, in their order",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/Request"}, "example": example(form)}
            },
        },
        "responses": {
            "200": {
                "description": "predictions",
                "content": {"application/json": _json("#/components/schemas/Response")},
            },
            **{status: {"description": text, "content": error} for status, text in ERRORS.items()},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": __version__, "description": about},
        "paths": {
            "/predict": {"post": predict},
            "/healthz": {
                "get": {"summary": "Whether the server answers", "security": [], "responses": _fine("status")}
            },
            "/stats": {"get": {"summary": "Counters and the version of the weights", "responses": _fine("counters")}},
        },
        "components": {
            "schemas": {
                "Instance": instance_schema(form),
                "Request": {
                    "type": "object",
                    "properties": {
                        "instances": {
                            "type": "array",
                            "items": {"$ref": "#/components/schemas/Instance"},
                            "minItems": 1,
                            "maxItems": most,
                        }
                    },
                    "required": ["instances"],
                    "additionalProperties": False,
                },
                "Response": _response(),
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}, "instance": {"type": "integer"}},
                },
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def instance_schema(form: Form) -> dict[str, Any]:
    """Returns the JSON schema of an instance: its arguments, or a text if the model takes some."""
    arguments = form.schema()
    if form.tell is None:
        return arguments
    return {"oneOf": [{"type": "string", "description": form.told}, arguments]}


def example(form: Form) -> dict[str, Any]:
    """Returns a request with the example that the model was compiled with."""
    return {"instances": [form.shown()]}


def _response() -> dict[str, Any]:
    weights = {
        "type": "object",
        "description": "the version of the weights",
        "properties": {"epoch": {"type": ["integer", "null"]}, "updates": {"type": ["integer", "null"]}},
    }
    bad = {
        "type": "array",
        "items": {"type": "integer"},
        "description": "indices of predictions with numbers that are not finite, which are null",
    }
    return {
        "type": "object",
        "properties": {"predictions": {"type": "array"}, "weights": weights, "not_finite": bad},
        "required": ["predictions", "weights"],
    }


def _json(schema: str) -> dict[str, Any]:
    return {"schema": {"$ref": schema}}


def _fine(what: str) -> dict[str, Any]:
    return {"200": {"description": what, "content": {"application/json": {"schema": {"type": "object"}}}}}
