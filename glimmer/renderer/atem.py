"""ATEM tool calls in a text: a scan of the grammar that loses nothing and never raises.

    block   := <atem:function_calls> invoke+ </atem:function_calls>
    invoke  := <atem:invoke name="N"> param* </atem:invoke>
    param   := <atem:parameter name="P"> VALUE </atem:parameter>

VALUE may contain anything, closers included: a closer closes only if the grammar can go on behind
it, and of several that do, the first. A call that begins inside a value and does not end there
means that the first call was cut. What is cut or broken becomes a call with a status; it never
becomes a shorter call that looks whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from renderers.base import ParsedToolCall, ToolCallParseStatus

from glimmer.renderer.typed import ParameterTypes, typed

Types = Mapping[str, ParameterTypes]  # of the parameters of each tool, by its name

_OPEN_BLOCK, _CLOSE_BLOCK = "<atem:function_calls>", "</atem:function_calls>"
_CLOSE_INVOKE, _CLOSE_PARAM = "</atem:invoke>", "</atem:parameter>"
_OPEN_PARAM = '<atem:parameter name="'
_OPEN_INVOKE = '<atem:invoke name="'
_INVOKE = re.compile(rf'{_OPEN_INVOKE}([^"\n]*)">')
_PARAM = re.compile(r'<atem:parameter name="([^"\n]*)">')
_STEP = re.compile(rf"\s*(?:{_CLOSE_INVOKE}|{_PARAM.pattern})")
_CLOSED = re.compile(rf"\s*{_CLOSE_INVOKE}\s*")
_BLOCK_END = re.compile(rf"\s*{_CLOSE_BLOCK}")
_SPACE = re.compile(r"\s*")
_START = re.compile(rf"(?:{_OPEN_BLOCK}\s*)?{_INVOKE.pattern}")
_CUT_TAG = r'</?[a-z:_]*(?:\s+name="?[^"\n<>]*)?'
_CUT_THEN_START = re.compile(rf"(?:{_CUT_TAG})?\s*{_START.pattern}")
_ATTEMPT = re.compile(r"<atem:(?:[fi]|\Z)|<atem\Z")
_TAG = re.compile(r"</?atem:[a-z_]*(?:\s+name=\"[^\"\n]*\"?)?>?|</?ate?m?:?\Z|</a?\Z|<a\Z")


class Found(NamedTuple):
    """A call, or the attempt at one, and its place in the text."""

    call: ParsedToolCall
    start: int
    stop: int


def find_calls(text: str, schemas: Types) -> tuple[list[Found], list[str]]:
    """The calls in a text, and the pieces of text before, between and behind them.

    Args:
        schemas: name of a function -> types of its parameters, by which values are typed.
    """
    found: list[Found] = []
    pieces, at = [], 0
    while (invoke := _INVOKE.search(text, at)) is not None:
        start = _block_start(text, at, invoke.start())
        call, stop = _call(text, invoke, schemas)
        stop = _block_stop(text, stop)
        call.raw = text[start:stop]
        found.append(Found(call, start, stop))
        pieces.append(text[at:start])
        at = stop
    attempt = _ATTEMPT.search(text, at)
    stop = attempt.start() if attempt is not None else len(text)
    pieces.append(text[at:stop])
    if attempt is not None:
        closed = _CLOSE_BLOCK in text[stop:]
        status = (
            ToolCallParseStatus.MALFORMED_STRUCTURE
            if closed
            else ToolCallParseStatus.UNCLOSED_BLOCK
        )
        call = ParsedToolCall(raw=text[stop:], arguments={}, status=status)
        found.append(Found(call, stop, len(text)))
    return found, pieces


def without_tags(text: str) -> str:
    """The text without tags, whole or cut, that belong to no call."""
    return _TAG.sub("", text)


def _block_start(text: str, floor: int, invoke: int) -> int:
    """Where the block of an invoke begins: at its opening tag, if that stands right before it."""
    opening = text.rfind(_OPEN_BLOCK, floor, invoke)
    if opening >= 0 and not text[opening + len(_OPEN_BLOCK) : invoke].strip():
        return opening
    return invoke


def _block_stop(text: str, at: int) -> int:
    """Behind the block's closing tag, if that comes next."""
    end = _BLOCK_END.match(text, at)
    return end.end() if end is not None else at


def _call(text: str, invoke: re.Match[str], schemas: Types) -> tuple[ParsedToolCall, int]:
    """The call that begins at `invoke`, and where it ends in the text."""
    name, at = known_name(invoke[1], schemas), invoke.end()
    values: dict[str, str] = {}
    status, twice = ToolCallParseStatus.OK, False
    swallowed = _swallowed(text, at, name) if name not in schemas else None
    if swallowed is not None:
        name, values, at = swallowed
        name = known_name(name, schemas)
    while True:
        step = _STEP.match(text, at)
        if step is None:
            status, at = _broken(text, _skip_space(text, at))
            break
        at, param = step.end(), step[1]
        if param is None:
            break
        closer = _closer(text, at)
        following = _started_inside(text, at, closer)
        if closer is None or following is not None:
            status = ToolCallParseStatus.UNCLOSED_BLOCK
            at = following.start() if following is not None else len(text)
            break
        twice |= param in values
        values.setdefault(param, text[at:closer])
        at = closer + len(_CLOSE_PARAM)
    arguments, readable = typed(values, schemas.get(name))
    if status is ToolCallParseStatus.OK:
        if not name:
            status = ToolCallParseStatus.MISSING_NAME
        elif twice:
            status = ToolCallParseStatus.MALFORMED_STRUCTURE
        elif schemas and name not in schemas:
            status = ToolCallParseStatus.UNKNOWN_TOOL
        elif not readable:
            status = ToolCallParseStatus.INVALID_JSON
    return ParsedToolCall(raw="", name=name or None, arguments=arguments, status=status), at


def known_name(name: str, schemas: Types) -> str:
    """The tool that a model means by a name: `search.search` is `search`, if only that is known.

    The prompt lists a tool without a namespace as the recipient "search.*".
    """
    space, _, function = name.partition(".")
    return space if space == function and space in schemas and name not in schemas else name


def _broken(text: str, at: int) -> tuple[ToolCallParseStatus, int]:
    """Status of a call that goes on with neither a parameter nor its end, and where it ends."""
    closer = text.find(_CLOSE_INVOKE, at)
    following = _START.search(text, at)
    if following is not None and (closer < 0 or following.start() < closer):
        return ToolCallParseStatus.UNCLOSED_BLOCK, following.start()
    if text.startswith(_CLOSE_BLOCK, at):
        return ToolCallParseStatus.UNCLOSED_BLOCK, at
    if closer >= 0:
        return ToolCallParseStatus.MALFORMED_STRUCTURE, closer + len(_CLOSE_INVOKE)
    block_end = text.find(_CLOSE_BLOCK, at)
    if block_end >= 0:
        return ToolCallParseStatus.MALFORMED_STRUCTURE, block_end
    return ToolCallParseStatus.UNCLOSED_BLOCK, len(text)


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
    """Whether a parameter may have ended here: another one, or a closed call, or the text's end,
    or a cut and another call."""
    closed = _CLOSED.match(text, at)
    if closed is None:
        at = _skip_space(text, at)
        if _PARAM.match(text, at) or _CUT_THEN_START.match(text, at):
            return True
        # A tag cut by the end of the completion can still become either.
        return _CLOSE_INVOKE.startswith(text[at:]) or _cut_param(text, at)
    at = closed.end()
    if not text.startswith(_CLOSE_BLOCK, at):
        cut = _CLOSE_BLOCK.startswith(text[at : at + len(_CLOSE_BLOCK)])
        return cut or _INVOKE.match(text, at) is not None
    # Behind a closed block no closer may follow: then this one was part of a value.
    closer = text.find(_CLOSE_PARAM, at)
    return closer < 0 or text.find(_OPEN_BLOCK, at, closer) >= 0


def _cut_param(text: str, at: int) -> bool:
    """Whether the text ends inside a parameter's opening tag that begins here."""
    rest = text[at:]
    if _OPEN_PARAM.startswith(rest):
        return True
    return rest.startswith(_OPEN_PARAM) and "\n" not in rest and rest.count('"') < 3


def _started_inside(text: str, at: int, closer: int | None) -> re.Match[str] | None:
    """A call that begins in a value and does not end in it; any call, if the value has no end."""
    if closer is None:
        return _START.search(text, at)
    if text.find(_OPEN_INVOKE, at, closer) < 0:
        return None
    for start in _START.finditer(text, at, closer):
        inside = _skip_space(text, start.end())
        if _PARAM.match(text, inside) and _CLOSE_INVOKE not in text[inside:closer]:
            return start
    return None


def _skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()
