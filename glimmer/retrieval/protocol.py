r"""Search-R1's wire format, and the errors a service can answer with.

    POST /retrieve  {"queries": ["who wrote ...", ...], "topk": 3, "return_scores": false}
      -> {"result": [[{"id": "7", "contents": "\"Title\"\ntext"}, ...], ...]}   one list a query
      -> {"result": [[{"document": {"id": ..., "contents": ...}, "score": 0.83}, ...], ...]}
         with "return_scores": true
    GET /info          what the service is: model, prefixes, index, limits
    GET /health        {"status": "ok"} while a known passage is found by its title
    GET /metrics       Prometheus' text format, see `glimmer.retrieval.metrics`
    GET /openapi.json  all of this for machines, see `glimmer.retrieval.openapi`
    an error           {"error": {"type": "InvalidRequest", "message": "...", "field": "queries"}}

With a token every path but /health wants the header "Authorization: Bearer <token>".

`RequestError` and its subclasses are all the errors there are; a status code is written here and
nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class RequestError(Exception):
    """An error answer.

    Attributes:
        status: HTTP status code.
        field: the request's field at fault, if it is one.
        headers: further headers of the answer.
    """

    status = 500

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        error = {"type": type(self).__name__, "message": str(self)}
        return {"error": error | ({"field": self.field} if self.field else {})}


class MalformedBody(RequestError):
    """The body is not a JSON object in UTF-8."""

    status = 400


class Unauthorized(RequestError):
    """The token is missing or another one."""

    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"WWW-Authenticate": "Bearer"}


class NotFound(RequestError):
    """No such path."""

    status = 404


class MethodNotAllowed(RequestError):
    """The path exists, for another method."""

    status = 405


class BodyTooSlow(RequestError):
    """The body did not arrive in time."""

    status = 408


class InvalidRequest(RequestError):
    """JSON, but not a request: a field is missing, unknown, of the wrong type or out of range."""

    status = 422


class BodyTooLarge(RequestError):
    """More bytes than the limit; `field` is "body"."""

    status = 422


class InternalError(RequestError):
    """The search itself failed; the service's log has the traceback."""

    status = 500


class _ComeBack(RequestError):
    """Not now: the client is to ask again after the seconds in Retry-After."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": "1"}


class Overloaded(_ComeBack):
    """Too many queries are waiting."""


class NotReady(_ComeBack):
    """A known passage was not found by its title."""


class Stopping(_ComeBack):
    """The service has been told to end and only finishes what it has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for; values from `glimmer.retrieval.settings`.

    Attributes:
        max_body_bytes: size of a request's body.
        max_queries: queries in one request.
        max_query_chars: characters of one query; the model cuts it at its own length anyway.
        max_waiting: queries waiting in the service, above which it answers 503.
    """

    max_body_bytes: int
    max_queries: int
    max_query_chars: int
    max_waiting: int


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A checked request."""

    queries: list[str]
    topk: int
    return_scores: bool


_FIELDS = ("queries", "topk", "return_scores")


def parse_request(
    body: bytes, limits: Limits, *, default_topk: int, max_topk: int
) -> SearchRequest:
    """A request's body, checked.

    Args:
        body: as it came.
        limits: of the service.
        default_topk: used when the request names none.
        max_topk: what the index can answer, min(efSearch, n).

    Raises:
        MalformedBody, InvalidRequest: the message names the field, what was found and expected.
    """
    try:
        value = json.loads(body.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MalformedBody(
            f"the body is not JSON in UTF-8 ({error}); expected "
            f'{{"queries": ["..."], "topk": 3, "return_scores": false}}'
        ) from error
    if not isinstance(value, dict):
        raise MalformedBody(f"the body is a JSON {type(value).__name__}, expected an object")
    if "query" in value:
        raise InvalidRequest(
            "found 'query'; expected 'queries', a list of texts, also for one query", field="query"
        )
    if unknown := sorted(set(value) - set(_FIELDS)):
        raise InvalidRequest(
            f"unknown field {unknown[0][:60]!r}; expected only {', '.join(_FIELDS)}",
            field=unknown[0][:60],
        )
    queries = value.get("queries")
    if not isinstance(queries, list):
        found = "none" if "queries" not in value else type(queries).__name__
        raise InvalidRequest(f"'queries': found {found}, expected a list of texts", field="queries")
    if not 1 <= len(queries) <= limits.max_queries:
        raise InvalidRequest(
            f"'queries': found {len(queries)} queries, expected 1 to {limits.max_queries}",
            field="queries",
        )
    for place, query in enumerate(queries):
        if not isinstance(query, str):
            raise InvalidRequest(
                f"'queries[{place}]': found {type(query).__name__}, expected a text",
                field="queries",
            )
        if not query.strip():
            raise InvalidRequest(f"'queries[{place}]': the query is empty", field="queries")
        if len(query) > limits.max_query_chars:
            raise InvalidRequest(
                f"'queries[{place}]': {len(query)} characters, expected at most "
                f"{limits.max_query_chars}",
                field="queries",
            )
        try:
            query.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"'queries[{place}]': holds half of a surrogate pair, which is no text",
                field="queries",
            ) from error
    topk = default_topk if value.get("topk") is None else value["topk"]
    if isinstance(topk, float) and topk.is_integer():
        topk = int(topk)  # JSON does not tell 3.0 from 3
    if not isinstance(topk, int) or isinstance(topk, bool):
        raise InvalidRequest(
            f"'topk': found {type(topk).__name__}, expected a whole number", field="topk"
        )
    if not 1 <= topk <= max_topk:
        raise InvalidRequest(
            f"'topk': found {topk}, expected 1 to {max_topk} (the smaller of efSearch and the "
            f"number of passages)",
            field="topk",
        )
    return_scores = value.get("return_scores", False)
    if not isinstance(return_scores, bool):
        raise InvalidRequest(
            f"'return_scores': found {type(return_scores).__name__}, expected true or false",
            field="return_scores",
        )
    return SearchRequest(queries, topk, return_scores)
