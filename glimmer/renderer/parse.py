"""Token ids of a completion -> reasoning, answer and tool calls. Total: nothing raises.

A completion is cut into channels by special token *ids* (their spelling in text does not count),
calls are found in a channel's text by a scan of the ATEM grammar:

    block   := <atem:function_calls> invoke+ </atem:function_calls>
    invoke  := <atem:invoke name="N"> param* </atem:invoke>
    param   := <atem:parameter name="P"> VALUE </atem:parameter>

VALUE may contain anything, closers included: a closer closes only if the grammar can go on behind
it, and of several that do, the first. What is cut or broken becomes a call with a status, or
visible text; it never becomes a shorter call that looks whole.

Which channel is which:
- `to=self` is reasoning, whatever it quotes; `to=user` is the answer, whatever it quotes;
- any other recipient is a tool's channel; what it holds is calls, or a malformed attempt;
- text without any header: its calls are recovered, the rest is the answer.
A header directly in front of `<|message|>` opens a new channel even where `<|eom|>` or `<|start|>`
is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

Decode = Callable[[list[int]], str]

_HEADER = re.compile(r"\s*(?:assistant\b)?\s*(?:to=(?P<to>[^\s<]+))?\s*")
_HEADER_AT_END = re.compile(r"(?:^|(?<=\s)|(?<=>))\s*(?:assistant\s+)?to=(?P<to>[^\s<]+)\s*\Z")
_HEADER_AT_START = re.compile(r"\s*(?:assistant\s+|assistant\Z)?(?:to=(?P<to>[^\s<]+)\s*)?")
_OPEN_BLOCK, _CLOSE_BLOCK = "<atem:function_calls>", "</atem:function_calls>"
_CLOSE_INVOKE, _CLOSE_PARAM = "</atem:invoke>", "</atem:parameter>"
_INVOKE = re.compile(r'<atem:invoke name="([^"\n]*)">')
_PARAM = re.compile(r'<atem:parameter name="([^"\n]*)">')
_TAG = re.compile(r"</?atem:[a-z_]*(?:\s+name=\"[^\"\n]*\"?)?>?|</?atem?:?\Z|</?at?\Z")


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that have a meaning here."""

    begin_of_text: int
    end_of_text: int
    start: int
    message: int
    eot: int
    eom: int


@dataclass
class _Channel:
    """A stretch between special tokens: its recipient, text and place in the completion."""

    recipient: str | None
    text: str
    start: int  # token span of the text
    stop: int
    closed: bool  # ended by a special token
    headed: bool  # had `<|message|>` in front


def parse_completion(
    token_ids: Sequence[int],
    *,
    decode: Decode,
    specials: SpecialIds,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> ParsedResponse:
    """Parse what the model wrote after `<|start|>assistant`.

    Args:
        token_ids: sampled ids, with or without the stop token.
        decode: ids to text, special tokens spelled out.
        specials: see `SpecialIds`.
        tools: schemas by which arguments are typed; without one, values stay text.
    """
    ids = list(token_ids)
    schemas = {f["name"]: f.get("parameters") or {} for f in map(_function, tools or [])}
    reasoning: list[str] = []
    answer: list[str] = []
    calls: list[ParsedToolCall] = []
    complete = True
    for channel in _channels(ids, decode, specials):
        complete = True
        if channel.recipient == "self":
            reasoning.append(channel.text)
            complete = channel.closed
        elif channel.recipient == "user":
            answer.append(channel.text)
        else:
            found, rest = _calls(channel, ids, decode, schemas)
            calls.extend(found)
            if channel.recipient is None:
                answer.append(_without_markup(rest) if found else rest)
    return ParsedResponse(
        content="\n".join(text for text in answer if text),
        reasoning_content="\n".join(reasoning) if reasoning else None,
        tool_calls=calls,
        reasoning_complete=complete,
    )


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("function") or tool


# ---- channels ------------------------------------------------------------------------------


def _channels(ids: list[int], decode: Decode, specials: SpecialIds) -> list[_Channel]:
    """The channels of a completion in order; stops at the end of the turn."""
    cuts = {
        specials.start,
        specials.message,
        specials.eot,
        specials.eom,
        specials.begin_of_text,
        specials.end_of_text,
    }
    out: list[_Channel] = []
    header: str | None = ""  # text of a header that waits for <|message|>; None inside a body
    recipient: str | None = None
    begin, at = 0, 0
    while True:
        end = next((i for i in range(at, len(ids)) if ids[i] in cuts), len(ids))
        text = decode(ids[at:end]) if end > at else ""
        kind = ids[end] if end < len(ids) else None
        if header is not None and kind == specials.message:
            # A header, perhaps behind text that had none.
            head = _HEADER_AT_END.search(text)
            if head is not None and text[: head.start()].strip() not in ("", "assistant"):
                out.append(_Channel(None, text[: head.start()], at, end, True, False))
            match = _HEADER.fullmatch(text)
            recipient = head["to"] if head else (match["to"] if match else None)
            if head is None and match is None and text.strip():
                out.append(_Channel(None, text, at, end, True, False))
            header, begin = None, end + 1
        elif header is not None:
            # No <|message|>: the text stands alone, with what looks like a header taken off.
            start = _HEADER_AT_START.match(text)
            body = text[start.end() :]
            if body.strip() or start["to"]:
                out.append(_Channel(start["to"], body, at, end, kind is not None, False))
        elif kind == specials.message:
            head = _HEADER_AT_END.search(text)
            if head is not None:  # a channel whose <|eom|> and <|start|> are missing
                out.append(_Channel(recipient, text[: head.start()], begin, end, False, True))
                recipient, begin = head["to"], end + 1
            else:
                out.append(_Channel(recipient, text, begin, end, False, True))
                begin = end + 1
        else:
            out.append(_Channel(recipient, text, begin, end, kind is not None, True))
            header = ""
        if kind is None or kind in (specials.eot, specials.end_of_text):
            return out
        if kind in (specials.eom, specials.start, specials.begin_of_text):
            header, recipient = "", None
        at = end + 1


# ---- calls ---------------------------------------------------------------------------------


def _calls(
    channel: _Channel, ids: list[int], decode: Decode, schemas: Mapping[str, Any]
) -> tuple[list[ParsedToolCall], str]:
    """Calls of a channel, and its text without them."""
    text = channel.text
    found: list[ParsedToolCall] = []
    kept, at = [], 0
    while True:
        invoke = _INVOKE.search(text, at)
        if invoke is None:
            break
        call, stop = _call(text, invoke, schemas)
        start = _block_start(text, at, invoke.start())
        kept.append(text[at:start])
        stop = _block_stop(text, stop)
        call.raw = text[start:stop]
        call.token_span = _span(channel, ids, decode, start, stop)
        found.append(call)
        at = stop
    kept.append(text[at:])
    rest = "".join(kept)
    if not found and channel.recipient is not None:
        status = (
            ToolCallParseStatus.MALFORMED_STRUCTURE
            if channel.closed
            else ToolCallParseStatus.UNCLOSED_BLOCK
        )
        found.append(
            ParsedToolCall(
                raw=text,
                name=channel.recipient,
                arguments={},
                token_span=(channel.start, channel.stop),
                status=status,
            )
        )
    elif not found and _OPEN_BLOCK in text:
        start = text.index(_OPEN_BLOCK)
        found.append(
            ParsedToolCall(
                raw=text[start:],
                token_span=_span(channel, ids, decode, start, len(text)),
                status=ToolCallParseStatus.UNCLOSED_BLOCK,
            )
        )
        rest = text[:start]
    return found, rest


def _block_start(text: str, floor: int, invoke: int) -> int:
    """Where the block of an invoke begins: at its opening tag, if that stands right before it."""
    opening = text.rfind(_OPEN_BLOCK, floor, invoke)
    if opening >= 0 and not text[opening + len(_OPEN_BLOCK) : invoke].strip():
        return opening
    return invoke


def _block_stop(text: str, at: int) -> int:
    """Behind the block's closing tag, if that comes next."""
    rest = text[at:]
    space = len(rest) - len(rest.lstrip())
    if rest[space:].startswith(_CLOSE_BLOCK):
        return at + space + len(_CLOSE_BLOCK)
    return at


def _call(
    text: str, invoke: re.Match[str], schemas: Mapping[str, Any]
) -> tuple[ParsedToolCall, int]:
    """The call that begins at `invoke`, and where it ends in the text."""
    name, at = invoke[1], invoke.end()
    values: dict[str, str] = {}
    status = ToolCallParseStatus.OK
    swallowed = _swallowed(text, at, name)
    if swallowed is not None:
        name, values, at = swallowed
    while True:
        at = _skip_space(text, at)
        if text.startswith(_CLOSE_INVOKE, at):
            at += len(_CLOSE_INVOKE)
            break
        param = _PARAM.match(text, at)
        if param is None:
            cut = at >= len(text) or _TAG.fullmatch(text, at) or _INVOKE.match(text, at)
            status = (
                ToolCallParseStatus.UNCLOSED_BLOCK
                if cut or text.startswith((_OPEN_BLOCK, _CLOSE_BLOCK), at)
                else ToolCallParseStatus.MALFORMED_STRUCTURE
            )
            if status is ToolCallParseStatus.MALFORMED_STRUCTURE:
                closer = text.find(_CLOSE_INVOKE, at)
                following = _INVOKE.search(text, at)
                if following is not None and (closer < 0 or following.start() < closer):
                    at = following.start()
                else:
                    at = closer + len(_CLOSE_INVOKE) if closer >= 0 else len(text)
            elif not text.startswith(_CLOSE_BLOCK, at) and not _INVOKE.match(text, at):
                at = at if text.startswith(_OPEN_BLOCK, at) else len(text)
            break
        closer = _closer(text, param.end())
        if closer is None:
            status = ToolCallParseStatus.UNCLOSED_BLOCK
            following = text.find(_OPEN_BLOCK, param.end())
            at = following if following >= 0 else len(text)
            break
        values[param[1]] = text[param.end() : closer]
        at = closer + len(_CLOSE_PARAM)
    if status is ToolCallParseStatus.OK and not name:
        status = ToolCallParseStatus.MISSING_NAME
    arguments, typed = _typed(values, schemas.get(name))
    if status is ToolCallParseStatus.OK and not typed:
        status = ToolCallParseStatus.INVALID_JSON
    return ParsedToolCall(raw="", name=name or None, arguments=arguments, status=status), at


def _swallowed(text: str, at: int, name: str) -> tuple[str, dict[str, str], int] | None:
    """`<atem:invoke name="search.query">X</atem:parameter>`: the model ran the parameter's opening
    tag into the call's. Read as search(query=X)."""
    here = _skip_space(text, at)
    if "." not in name or _PARAM.match(text, here) or text.startswith(_CLOSE_INVOKE, here):
        return None
    closer = _closer(text, at)
    inner = _PARAM.search(text, at, closer if closer is not None else len(text))
    if closer is None or inner is not None:
        return None
    function, parameter = name.rsplit(".", 1)
    return function, {parameter: text[at:closer]}, closer + len(_CLOSE_PARAM)


def _closer(text: str, at: int) -> int | None:
    """The first `</atem:parameter>` from `at` behind which the grammar can go on."""
    closer = text.find(_CLOSE_PARAM, at)
    while closer >= 0:
        if _goes_on(text, closer + len(_CLOSE_PARAM)):
            return closer
        closer = text.find(_CLOSE_PARAM, closer + 1)
    return None


def _goes_on(text: str, at: int) -> bool:
    """Whether a parameter may have ended here: another one, or a closed call, or the text's end."""
    at = _skip_space(text, at)
    if at >= len(text) or _PARAM.match(text, at):
        return True
    if not text.startswith(_CLOSE_INVOKE, at):
        # A tag cut by the end of the completion can still become either.
        return _CLOSE_INVOKE.startswith(text[at:]) or '<atem:parameter name="'.startswith(text[at:])
    at = _skip_space(text, at + len(_CLOSE_INVOKE))
    if at >= len(text) or _INVOKE.match(text, at) or _CLOSE_BLOCK.startswith(text[at:]):
        return True
    if not text.startswith(_CLOSE_BLOCK, at):
        return False
    # Behind a closed block no closer may follow: then this one was part of a value.
    return _CLOSE_PARAM not in text[at:].split(_OPEN_BLOCK)[0]


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _span(
    channel: _Channel, ids: list[int], decode: Decode, start: int, stop: int
) -> tuple[int, int]:
    """Token span of characters [start, stop) of a channel's text, by bisection over prefixes."""

    def tokens(characters: int) -> int:
        low, high = channel.start, channel.stop
        while low < high:
            middle = (low + high) // 2
            if len(decode(ids[channel.start : middle])) < characters:
                low = middle + 1
            else:
                high = middle
        return low

    first = tokens(start)
    if first > channel.start and len(decode(ids[channel.start : first])) > start:
        first -= 1
    return first, tokens(stop)


# ---- values --------------------------------------------------------------------------------


def _typed(
    values: Mapping[str, str], schema: Mapping[str, Any] | None
) -> tuple[dict[str, Any], bool]:
    """Arguments with the types of the schema; False if one could not be read as its type."""
    properties = (schema or {}).get("properties") or {}
    arguments: dict[str, Any] = {}
    good = True
    for key, text in values.items():
        declared = (properties.get(key) or {}).get("type")
        kinds = declared if isinstance(declared, list) else [declared]
        if declared is None or "string" in kinds:
            arguments[key] = text
            continue
        try:
            arguments[key] = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except ValueError:
            arguments[key], good = text, False
    return arguments, good


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is out of range")
    return value


def _without_markup(text: str) -> str:
    """Visible text beside recovered calls, without pieces of their markup."""
    return _TAG.sub("", text).strip()
