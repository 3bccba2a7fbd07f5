"""Section `retrieval` of the config: every key, its default and its check."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from glimmer.errors import ConfigError

SERVICE_DEFAULTS: dict[str, Any] = {
    "url": None,  # a service that runs elsewhere, instead of starting one
    "require_info": True,  # of that service: it must say which index and model it has
    "host": "127.0.0.1",
    "port": 0,  # 0: any free one
    "replicas": 1,  # processes behind one port
    "token_env": None,  # name of the environment variable that holds the bearer token
    "model": None,  # None: the one recorded in the index
    "device": "cpu",
    "threads": 1,
    "ef_search": None,  # None: the one recorded in the index
    "default_topk": 3,  # for requests that name none
    "max_batch": 64,
    "batch_wait_ms": 50.0,
    "cache_size": 50_000,  # answers of ef_search candidates, 12 bytes each
    "max_body_bytes": 1 << 20,
    "max_queries": 512,
    "max_query_chars": 4096,
    "max_waiting": 4096,
    "body_timeout_s": 30.0,
    "idle_timeout_s": 60.0,  # of a connection that sends no request
    "drain_timeout_s": 10.0,  # for the requests at work when the service is told to end
    "verify_checksums": True,
    "start_timeout_s": 120.0,
}

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "url": ((str, type(None)), "an http URL ending in /retrieve, or null"),
    "require_info": (bool, "true or false"),
    "host": (str, "a host name"),
    "port": (int, "a whole number, 0 to 65535"),
    "token_env": ((str, type(None)), "the name of an environment variable, or null"),
    "model": ((str, type(None)), "a model setting, or null"),
    "device": (str, "a torch device"),
    "ef_search": ((int, type(None)), "a whole number, or null"),
    "batch_wait_ms": ((int, float), "milliseconds"),
    "verify_checksums": (bool, "true or false"),
    "body_timeout_s": ((int, float), "seconds"),
    "idle_timeout_s": ((int, float), "seconds"),
    "drain_timeout_s": ((int, float), "seconds"),
    "start_timeout_s": ((int, float), "seconds"),
}


def service_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the service, completed by defaults and checked.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), or a value of the wrong type or
            out of range.
    """
    for key in settings:
        if key not in SERVICE_DEFAULTS:
            near = difflib.get_close_matches(key, SERVICE_DEFAULTS, n=1)
            hint = (
                f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(SERVICE_DEFAULTS)}."
            )
            raise ConfigError(f"retrieval.{key}: no such setting. {hint}")
    complete = SERVICE_DEFAULTS | dict(settings)
    for key, value in complete.items():
        kind, expected = _TYPES.get(key, (int, "a whole number"))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"retrieval.{key}: found {value!r}, expected {expected}.")
    lowest = {
        "port": 0,
        "cache_size": 0,
        "batch_wait_ms": 0,
        "start_timeout_s": 0.1,
        "body_timeout_s": 0.1,
        "idle_timeout_s": 0.1,
        "drain_timeout_s": 0,
    }
    for key, value in complete.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if value < lowest.get(key, 1):
                raise ConfigError(
                    f"retrieval.{key}: found {value}, expected at least {lowest.get(key, 1)}."
                )
    if complete["port"] > 65535:
        raise ConfigError(f"retrieval.port: found {complete['port']}, expected 0 to 65535.")
    if complete["max_queries"] > complete["max_waiting"]:
        raise ConfigError(
            f"retrieval.max_waiting: found {complete['max_waiting']}, expected at least "
            f"retrieval.max_queries = {complete['max_queries']}; a request of that many queries "
            f"would never be taken."
        )
    url = complete["url"]
    if url is not None and not (url.startswith(("http://", "https://")) and "/retrieve" in url):
        raise ConfigError(f"retrieval.url: found {url!r}, expected {_TYPES['url'][1]}.")
    return complete


def bearer_token(token_env: str | None) -> str | None:
    """The token of service and client: the value of the environment variable of that name.

    Raises:
        ConfigError: the variable is not set, or its value cannot stand in an HTTP header. The value
            is in no message.
    """
    if token_env is None:
        return None
    token = os.environ.get(token_env, "")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"retrieval.token_env: found {'no value' if not token else 'an unfit value'} in the "
            f"environment variable {token_env}, expected a token of printable ASCII signs without "
            f"spaces. Set the variable, for example to the output of `openssl rand -hex 32`."
        )
    return token
