"""Token ids of a completion -> reasoning, answer and tool calls. Total: nothing raises.

A completion is cut into channels by special token *ids* (their spelling in text does not count);
the calls in a channel's text are found by `glimmer.renderer.atem`.

Which channel is which:
- `to=self` is reasoning, whatever it quotes;
- `to=user` is the answer, whatever it quotes, save for one thing: `to=NAME` and a call of NAME at
  its very end are a channel whose special tokens are missing;
- any other recipient is a tool's channel; what it holds is calls, or a malformed attempt;
- text without any header: its calls are recovered, the rest is the answer.
A header directly in front of `<|message|>` opens a new channel even where `<|eom|>` or `<|start|>`
is missing. A header that the end of the completion cuts is no text, and a block that the model
opens in another role's name is no part of its turn.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, compress, count
from typing import Protocol

from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

from glimmer.renderer.atem import Types, find_calls, known_name, without_tags


class Decode(Protocol):
    """Ids to text, special tokens spelled out; see `glimmer.renderer.codec.Decoder`."""

    def __call__(self, ids: Sequence[int]) -> str: ...

    def sizes(self, ids: Sequence[int]) -> list[int] | None: ...

    def pieces(self, ids: Sequence[int]) -> Iterable[bytes]: ...


_HEADER = re.compile(r"\s*(?:assistant\b)?\s*(?:to=(?P<to>[^\s<]+))?\s*")
_HEADER_AT_END = re.compile(r"(?<!\s)\s*(?<!\w)(?:assistant\s+)?to=(?P<to>[^\s<]+)\s*\Z")
_HEADER_AT_START = re.compile(r"\s*(?:assistant\s+|assistant\Z)?(?:to=(?P<to>[^\s<]+)\s*)?")
_OTHER_ROLE = re.compile(r"\s*(?:user|tool|system)\b")
_HEADER_SIZE = 64  # texts up to this size are remembered: a model writes the same few headers
_NOT_OURS = ""  # recipient of a block in another role's name
_READ = (ToolCallParseStatus.OK, ToolCallParseStatus.UNKNOWN_TOOL)
_STRAY = re.compile(
    r"(?<!\s)\s*(?<!\w)to=(?P<to>[^\s<]+)\s*"
    r'(?P<block><atem:function_calls>\s*<atem:invoke name="(?P=to)">)'
)


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that have a meaning here."""

    begin_of_text: int
    end_of_text: int
    start: int
    message: int
    eot: int
    eom: int

    @cached_property
    def all(self) -> frozenset[int]:
        """Those that cut a completion into pieces: every one."""
        return frozenset(getattr(self, field.name) for field in fields(self))


@dataclass(slots=True)
class _Channel:
    """A stretch between special tokens: its recipient, text and place in the completion."""

    recipient: str | None
    text: str
    start: int  # token span in which the text lies
    stop: int
    closed: bool = True  # ended by a special token
    skipped: str = ""  # what those tokens hold in front of the text: a header


def parse_completion(
    token_ids: Sequence[int],
    *,
    decode: Decode,
    specials: SpecialIds,
    types: Types,
) -> ParsedResponse:
    """Parse what the model wrote after `<|start|>assistant`.

    Args:
        token_ids: sampled ids, with or without the stop token.
        decode: ids to text, special tokens spelled out.
        specials: see `SpecialIds`.
        types: by which arguments are typed (`glimmer.renderer.typed.types_of`); what they do not
            say stays text.
    """
    ids = list(token_ids)
    reasoning: list[str] = []
    answer: list[str] = []
    calls: list[ParsedToolCall] = []
    complete = True
    for channel in _channels(ids, decode, specials):
        if channel.recipient == _NOT_OURS:
            continue
        complete = channel.recipient != "self" or channel.closed
        if channel.recipient == "self":
            reasoning.append(channel.text)
            continue
        found, rest = _read(channel, ids, decode, types)
        calls.extend(found)
        answer.append(rest)
    return ParsedResponse(
        content="\n".join(text for text in answer if text),
        reasoning_content="\n".join(reasoning) if reasoning else None,
        tool_calls=calls,
        reasoning_complete=complete,
    )


# ---- channels ------------------------------------------------------------------------------


def _channels(ids: list[int], decode: Decode, specials: SpecialIds) -> list[_Channel]:
    """The channels of a completion in order; stops at the end of the turn."""
    cuts = specials.all
    ends = [*compress(count(), map(cuts.__contains__, ids)), len(ids)]
    out: list[_Channel] = []
    in_header = True  # the text before the next special token may be a header
    started = False  # <|start|> stands before it
    recipient: str | None = None
    begin, at = 0, 0
    for end in ends:
        text = decode(ids[at:end]) if end > at else ""
        kind = ids[end] if end < len(ids) else None
        if in_header and started and _OTHER_ROLE.match(text):
            recipient, begin, in_header = _NOT_OURS, end + 1, kind != specials.message
        elif in_header and kind == specials.message:
            before, recipient = (_known_headed if len(text) < _HEADER_SIZE else _headed)(text)
            if before:
                out.append(_Channel(None, before, at, end))
            in_header, begin = False, end + 1
        elif in_header:
            # No <|message|>: the text stands alone, with what looks like a header taken off.
            start = _HEADER_AT_START.match(text)
            body, closed = text[start.end() :], kind is not None
            shown = body.strip() or start["to"] if closed else body
            if shown and (closed or not _cut_header(body, started)):
                out.append(_Channel(start["to"], body, at, end, closed, start[0]))
        elif kind == specials.message:
            # A header whose <|eom|> and <|start|> are missing, or a stray <|message|>.
            head = _HEADER_AT_END.search(text)
            body = text[: head.start()] if head is not None else text
            out.append(_Channel(recipient, body, begin, end, closed=False))
            recipient = head["to"] if head is not None else recipient
            begin = end + 1
        else:
            out.append(_Channel(recipient, text, begin, end, closed=kind is not None))
        if kind is None or kind in (specials.eot, specials.end_of_text):
            return out
        if kind != specials.message:
            in_header, recipient, started = True, None, kind == specials.start
        at = end + 1
    return out


@lru_cache(maxsize=256)
def _known_headed(text: str) -> tuple[str, str | None]:
    return _headed(text)


def _headed(text: str) -> tuple[str, str | None]:
    """Text in front of `<|message|>` -> what stands before its header, and the recipient."""
    whole = _HEADER.fullmatch(text)
    if whole is not None:
        return "", whole["to"]
    head = _HEADER_AT_END.search(text)
    if head is None:
        return text, None
    before = text[: head.start()]
    return ("" if before.strip() in ("", "assistant") else before), head["to"]


def _cut_header(body: str, started: bool) -> bool:
    """Whether all there is can be the beginning of a header."""
    words = ("assistant", "to=", *(("user", "tool", "system") if started else ()))
    return any(word.startswith(body.strip()) for word in words)


# ---- what a channel holds --------------------------------------------------------------------


def _read(
    channel: _Channel, ids: list[int], decode: Decode, schemas: Types
) -> tuple[list[ParsedToolCall], str]:
    """Calls of a channel, and the visible text beside them."""
    text, offset, visible = channel.text, 0, ""
    if channel.recipient == "user":
        stray = _stray(text)
        if stray is None:
            return [], text
        visible, offset = text[: stray.start()], stray.start("block")
    found, pieces = find_calls(text[offset:], schemas)
    places = _Places(channel, ids, decode) if found else None
    before = offset + len(channel.skipped)
    for each in found:
        each.call.token_span = places.span(each.start + before, each.stop + before)
    calls = [each.call for each in found]
    if channel.recipient is None:
        if calls:
            pieces[: len(calls)] = [_HEADER_AT_END.sub("", p) for p in pieces[: len(calls)]]
        visible = without_tags("".join(pieces))
        visible = visible.strip() if calls or visible != text else visible
    elif channel.recipient != "user":
        for call in calls:
            if call.status != ToolCallParseStatus.MISSING_NAME:
                call.name = call.name or channel.recipient
        if calls and calls[0].status in _READ and not _addressed(channel, calls[0], schemas):
            calls[0].status = ToolCallParseStatus.MALFORMED_STRUCTURE
        calls = calls or [_no_call(channel)]
    return calls, visible


def _addressed(channel: _Channel, call: ParsedToolCall, schemas: Types) -> bool:
    """Whether a channel is one for this call: addressed to its tool, or to the tool's namespace."""
    recipient = known_name((channel.recipient or "").removesuffix(".*"), schemas)
    return recipient in (call.name, (call.name or "").partition(".")[0])


def _stray(text: str) -> re.Match[str] | None:
    """`to=NAME` and a whole call of NAME, with nothing behind it."""
    for stray in _STRAY.finditer(text):
        found, pieces = find_calls(text[stray.start("block") :], {})
        if len(found) == 1 and found[0].call.status == ToolCallParseStatus.OK:
            if not "".join(pieces).strip():
                return stray
    return None


def _no_call(channel: _Channel) -> ParsedToolCall:
    """A tool's channel without anything like a call."""
    status = (
        ToolCallParseStatus.MALFORMED_STRUCTURE
        if channel.closed
        else ToolCallParseStatus.UNCLOSED_BLOCK
    )
    return ParsedToolCall(
        raw=channel.text,
        name=channel.recipient,
        arguments={},
        token_span=(channel.start, channel.stop),
        status=status,
    )


class _Places:
    """Where each token of a channel begins and ends in its text, in bytes of UTF-8, or in
    characters where bytes cannot be told."""

    def __init__(self, channel: _Channel, ids: list[int], decode: Decode) -> None:
        self._first = channel.start
        self._text: str | None = None  # set where characters are several bytes
        tokens = ids[channel.start : channel.stop]
        # Bytes that are no UTF-8 are counted as the characters that stand for them.
        text = channel.skipped + channel.text
        sizes = decode.sizes(tokens) if "\ufffd" not in text else None
        if sizes is None:
            self._starts, self._ends = _by_characters(decode.pieces(tokens))
            return
        self._ends = list(accumulate(sizes))
        self._starts = [0, *self._ends]
        if not text.isascii():
            self._text = text

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The tokens that hold the characters [start, stop)."""
        if self._text is not None:
            start, stop = (len(self._text[:at].encode()) for at in (start, stop))
        first = bisect_right(self._ends, start)
        last = min(bisect_left(self._starts, stop), len(self._ends))
        return self._first + first, self._first + max(first, last)


def _by_characters(tokens: Iterable[bytes]) -> tuple[list[int], list[int]]:
    """Starts and ends of tokens; those that share a character, cut inside its bytes, share its
    place."""
    decoder = getincrementaldecoder("utf-8")("replace")
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for token in tokens:
        # Its first byte lies in the last character that is there once that byte has been read.
        head = len(decoder.decode(token[:1]))
        begun = bool(decoder.getstate()[0])
        starts.append(at + max(head + begun - 1, 0))
        at += head + len(decoder.decode(token[1:]))
        ends.append(at + bool(decoder.getstate()[0]))
    return starts, ends
