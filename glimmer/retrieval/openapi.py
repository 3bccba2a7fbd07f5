"""The service's OpenAPI page, with the limits that it really has. It is held against the service by
schemathesis (tests/retrieval/test_openapi.py)."""

from __future__ import annotations

from typing import Any

import glimmer
from glimmer.retrieval import protocol
from glimmer.retrieval.protocol import Limits

# A query must have another sign than these. Spelled out, since dialects differ in what \s means.
_SPACES = "".join(f"\\u{i:04x}" for i in range(0x3001) if chr(i).isspace())
_PASSAGE = {
    "type": "object",
    "required": ["id", "contents"],
    "properties": {"id": {"type": "string"}, "contents": {"type": "string"}},
}
_SCORED = {
    "type": "object",
    "required": ["document", "score"],
    "additionalProperties": False,
    "properties": {"document": _PASSAGE, "score": {"type": "number"}},
}


def _lists_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "array", "items": entry}}


def document(limits: Limits, *, max_topk: int, default_topk: int, token: bool) -> dict[str, Any]:
    """The page as OpenAPI 3.1.

    Args:
        limits: of the service.
        max_topk: most passages a search.
        default_topk: passages of a request that names no topk.
        token: whether a bearer token is wanted.
    """
    request = {
        "type": "object",
        "required": ["queries"],
        "additionalProperties": False,
        "properties": {
            "queries": {
                "type": "array",
                "minItems": 1,
                "maxItems": limits.max_queries,
                "items": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": limits.max_query_chars,
                    "pattern": f"[^{_SPACES}]",
                },
            },
            "topk": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": max_topk,
                "default": default_topk,
            },
            "return_scores": {"type": "boolean", "default": False},
        },
    }
    result = {
        "type": "object",
        "required": ["result"],
        "additionalProperties": False,
        "properties": {"result": {"anyOf": [_lists_of(_PASSAGE), _lists_of(_SCORED)]}},
    }
    errors = {kind.__name__: kind for kind in _kinds(protocol.RequestError)}
    body = "MalformedBody BodyTooSlow BodyTooLarge InvalidRequest InternalError Overloaded Stopping"
    guard = ["Unauthorized"] if token else []

    def answers(ok: dict[str, Any], *kinds: str) -> dict[str, Any]:
        by_status: dict[int, list[str]] = {}
        for name in [*kinds, *guard]:
            by_status.setdefault(errors[name].status, []).append(name)
        return {"200": ok} | {
            str(status): {
                "description": " or ".join(names),
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            | ({"headers": _RETRY_AFTER} if status == 503 else {})
            for status, names in sorted(by_status.items())
        }

    def json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    health = answers(
        json("Ready", {"type": "object", "properties": {"status": {"const": "ok"}}}),
        *("NotReady", "Overloaded", "Stopping", "InternalError"),
    )
    health.pop("401", None)
    text = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
    page: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "glimmer retrieval service", "version": glimmer.__version__},
        "paths": {
            "/retrieve": {
                "post": {
                    "summary": "The passages nearest to each query, best first",
                    "operationId": "retrieve",
                    "requestBody": {
                        "required": True,
                        "description": f"At most {limits.max_body_bytes} bytes",
                        "content": {"application/json": {"schema": request}},
                    },
                    "responses": answers(json("One list a query", result), *body.split()),
                }
            },
            "/info": _get(
                "info", "What the service is", answers(json("Facts", {"type": "object"}))
            ),
            "/health": _get("health", "Whether a known passage is found", health),
            "/metrics": _get("metrics", "For Prometheus", answers(text)),
            "/openapi.json": _get("openapi", "This page", answers(json("", {"type": "object"}))),
        },
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "additionalProperties": False,
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["type", "message"],
                            "additionalProperties": False,
                            "properties": {
                                "type": {"enum": sorted(errors)},
                                "message": {"type": "string"},
                                "field": {"type": "string"},
                            },
                        }
                    },
                }
            }
        },
    }
    if token:
        page["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"token": []}]
        page["paths"]["/health"]["get"]["security"] = []
    return page


_RETRY_AFTER = {"Retry-After": {"description": "Seconds", "schema": {"type": "string"}}}


def _get(name: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"summary": summary, "operationId": name, "responses": responses}}


def _kinds(kind: type) -> list[type]:
    """The error types that are sent, below `kind`."""
    found = []
    for child in kind.__subclasses__():
        found += _kinds(child) if child.__subclasses__() else [child]
    return found
