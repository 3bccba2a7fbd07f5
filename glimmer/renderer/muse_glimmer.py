"""Muse Glimmer's conversation format, by hand: messages -> token ids, and back.

Wire format (harmony channels, ATEM tool calls):

    <|begin_of_text|>
    <|start|>system<|message|>TEXT ... # Valid recipients: "self", "search.*", "user".<|eot|>
    <|start|>user<|message|>QUESTION<|eot|>
    <|start|>assistant to=self<|message|>REASONING<|eom|>
    <|start|>assistant to=search<|message|><atem:function_calls>
    <atem:invoke name="search">
    <atem:parameter name="query">TEXT</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>
    <|start|>tool search<|message|><tool_output name="search">
    RESULT
    </tool_output><|eot|>
    <|start|>assistant to=user<|message|>ANSWER<|eot|>

`<|eom|>` ends a channel and the same speaker goes on; `<|eot|>` ends the turn. The prompt for the
model ends in a bare `<|start|>assistant`: it writes the recipient itself. Special tokens cut the
text before it is tokenised, so a piece between two of them may be tokenised alone, and the result
is that of the whole string.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from renderers.base import (
    ParsedResponse,
    RenderedTokens,
    extract_message_tool_names,
)

from glimmer.renderer.bridged import BridgedTokens
from glimmer.renderer.codec import Decoder, Encoder
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.parse import SpecialIds, parse_completion
from glimmer.renderer.pieces import Piece, block, runs
from glimmer.renderer.text import (
    assistant_blocks,
    check_tools,
    content_text,
    default_system_text,
    is_mapping,
    refuse_media,
    system_tail,
    system_text,
    tool_name,
    tool_parts,
)
from glimmer.renderer.typed import types_of

Messages = Sequence[Mapping[str, Any]]
_CACHED_TEXTS = 4096


class MuseGlimmerRenderer:
    """Renders and parses conversations of Muse Glimmer; follows the API of `renderers` 0.1.12.

    Args:
        tokenizer: transformers' fast tokenizer, with the format's special tokens.
        config: see `MuseGlimmerRendererConfig`.

    Raises:
        ValueError: the tokenizer lacks a special token.
    """

    config_class = MuseGlimmerRendererConfig

    def __init__(self, tokenizer: Any, config: MuseGlimmerRendererConfig) -> None:
        self.tokenizer = self._tokenizer = tokenizer
        self.config = config
        self._specials = {
            name: self._special_id(f"<|{name}|>")
            for name in ("begin_of_text", "end_of_text", "start", "message", "eot", "eom")
        }
        self._special_ids = SpecialIds(**self._specials)
        self._encoded: dict[str, list[int]] = {}
        self._encode_anew = Encoder(tokenizer)
        self._decode = Decoder(tokenizer)
        self._types = types_of(json.loads(config.parse_tools_json))
        self._descriptions = json.loads(config.tool_namespace_descriptions_json)

    def _special_id(self, token: str) -> int:
        found = self.tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or self.tokenizer.convert_ids_to_tokens(found) != token:
            raise ValueError(
                f"the tokenizer has no special token {token!r}: it is not one of Muse Glimmer's"
            )
        return found

    @property
    def is_prefix_stable(self) -> bool:
        """False: an assistant message behind another's calls turns their `<|eot|>` into `<|eom|>`,
        and a late call with a known id renames the results before it."""
        return False

    # ---- render ----------------------------------------------------------------------------

    def pieces(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[Piece]:
        """The conversation as attributed text; joined, it is what the template gives."""
        if not messages:
            raise ValueError("messages: found none, expected at least one")
        for index, message in enumerate(messages):
            if not is_mapping(message):
                found = type(message).__name__
                raise ValueError(f"messages[{index}]: found {found}, expected a mapping")
        if self.config.media == "refused":
            refuse_media(messages)
        tools = tools or []
        check_tools(tools)
        out = [Piece("<|begin_of_text|>", -1, special=True)]
        tail = system_tail(tools, self._descriptions)
        strength = f"\n\nReasoning strength: {self.config.reasoning_strength}."
        if not any(message.get("role") == "system" for message in messages):
            text = default_system_text(self.config.knowledge_cutoff, self.config.current_date)
            out += block("system", [Piece(text + strength + tail, -1)], -1)
        forgotten = self._forgotten(messages)
        open_run = False  # an assistant block before this one ended with <|eom|>
        for index, message in enumerate(messages):
            role = message.get("role")
            if role == "system":
                text, has_strength = system_text(message, index)
                body = [
                    Piece(text, index, content=True),
                    Piece(("" if has_strength else strength) + tail, index),
                ]
                out += block("system", body, index)
            elif role == "user":
                text = content_text(message, index)
                out += block("user", [Piece(text, index, content=True)], index)
            elif role == "tool":
                out += self._tool_block(message, index, tool_name(message, messages))
            elif role == "assistant":
                following = messages[index + 1] if index + 1 < len(messages) else {}
                goes_on = following.get("role") == "assistant"
                if index < forgotten:
                    message = {**message, "reasoning_content": None}
                out += self._assistant(message, index, goes_on, open_run)
                open_run = out[-1].text == "<|eom|>"
            if role != "assistant":
                open_run = False
        if add_generation_prompt:
            out += [Piece("<|start|>", -1, special=True), Piece("assistant", -1)]
        return out

    def _forgotten(self, messages: Messages) -> int:
        """Assistant messages before this index render without their reasoning."""
        if self.config.retain_reasoning_in_history:
            return 0
        return max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=0)

    @staticmethod
    def _tool_block(message: Mapping[str, Any], index: int, name: str) -> list[Piece]:
        before, body, after = tool_parts(message, index, name)
        parts = [Piece(before, index), Piece(body, index, content=True), Piece(after, index)]
        return block(f"tool {name}", parts, index)

    def _assistant(
        self, message: Mapping[str, Any], index: int, goes_on: bool, open_run: bool
    ) -> list[Piece]:
        """All channels of one assistant message, attributed."""
        everything = self.config.attribution == "sampled"
        out: list[Piece] = []
        for recipient, text, end in assistant_blocks(message, index, goes_on):
            # The very first opener of a run stands in the prompt; the model writes later ones.
            opener = everything and (open_run or bool(out))
            header = everything
            out += [
                Piece("<|start|>", index, opener, opener, special=True),
                Piece("assistant", index, opener, opener),
                Piece(f" to={recipient}", index, header, header),
                Piece("<|message|>", index, header, header, special=True),
                Piece(text, index, True, True),
                Piece(end, index, True, True, special=True),
            ]
        return out

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Token ids with, for each, its message, whether it is sampled, and whether it is content.

        Raises:
            ValueError: where the template raises; names message and field.
        """
        pieces = self.pieces(messages, tools, add_generation_prompt)
        return self._tokens(pieces, messages)

    def render_ids(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The token ids alone."""
        ids: list[int] = []
        for special, run in runs(self.pieces(messages, tools, add_generation_prompt)):
            if special:
                ids.append(self._specials[run[0].text[2:-2]])
            else:
                ids.extend(self._encode_run(run)[1])
        return ids

    def render_text(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The conversation as text, byte for byte what the template gives."""
        return "".join(p.text for p in self.pieces(messages, tools, add_generation_prompt))

    def _encode(self, text: str) -> list[int]:
        """Ids of a text between two special tokens. Callers must not change the list."""
        found = self._encoded.get(text)
        if found is None:
            found = self._encode_anew(text) if text else []
            if len(self._encoded) >= _CACHED_TEXTS:
                self._encoded.clear()
            self._encoded[text] = found
        return found

    def _encode_run(self, run: list[Piece]) -> tuple[str, list[int]]:
        """Text of pieces between two special tokens, and its ids; see `_encode`."""
        text = "".join(piece.text for piece in run)
        try:
            return text, self._encode(text)
        except (TypeError, UnicodeEncodeError):  # tokenizers' own message names no text
            for piece in run:
                try:
                    piece.text.encode()
                except UnicodeEncodeError as error:
                    character = f"{piece.text[error.start]!r} at character {error.start}"
                    raise ValueError(
                        f"messages[{piece.message}]: found {character} of one of its texts, half a "
                        "character that no token stands for. Replace it."
                    ) from error
            raise

    def _tokens(self, pieces: list[Piece], messages: Messages) -> RenderedTokens:
        ids: list[int] = []
        owners: list[Piece] = []
        for special, run in runs(pieces):
            if special:
                ids.append(self._specials[run[0].text[2:-2]])
                owners.append(run[0])
                continue
            text, encoded = self._encode_run(run)
            ids.extend(encoded)
            owners.extend(self._owners(text, encoded, [piece for piece in run if piece.text]))
        return RenderedTokens(
            token_ids=ids,
            message_indices=[piece.message for piece in owners],
            sampled_mask=[piece.sampled for piece in owners],
            is_content=[piece.content for piece in owners],
            message_roles=[message.get("role") or "" for message in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )

    def _owners(self, text: str, encoded: list[int], run: list[Piece]) -> list[Piece]:
        """The piece that each token of `text` belongs to: the one its first character lies in."""
        if len(run) <= 1:
            return run * len(encoded)
        lengths = [len(piece.text.encode()) for piece in run]
        sizes = self._decode.sizes(encoded)
        if sizes is None or sum(sizes) != sum(lengths):
            offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            starts = [start for start, _ in offsets["offset_mapping"]]
            lengths = [len(piece.text) for piece in run]
        else:
            starts = [0, *accumulate(sizes[:-1])]
        ends = list(accumulate(lengths))
        return [run[bisect_right(ends, start)] for start in starts]

    # ---- parse and bridge ------------------------------------------------------------------

    def get_stop_token_ids(self) -> list[int]:
        """Sampling stops after these. `<|eom|>` is none: the model goes on in another channel."""
        return [self._specials["eot"], self._specials["end_of_text"]]

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """Reasoning, answer and tool calls of a completion; total, see `glimmer.renderer.parse`.

        Args:
            tools: schemas that type the arguments; None takes the config's.
            prompt_ids: part of the library's API; unused, as every prompt here ends in a bare
                `<|start|>assistant`.
        """
        parsed = parse_completion(
            token_ids,
            decode=self._decode,
            specials=self._special_ids,
            types=self._types if tools is None else types_of(tools),
        )
        if (
            self.config.answer_from_reasoning_fallback
            and not (parsed.content or parsed.tool_calls)
            and parsed.reasoning_complete
        ):
            return replace(parsed, content=parsed.reasoning_content or "")
        return parsed

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """The next prompt: what was sampled, untouched, and the new messages behind it.

        A completion without `<|eot|>` gets one. A tool message with neither name nor id has the
        empty name that the template gives it.

        Returns:
            None where only a full render is right: no previous prompt, nothing new, an assistant
            or system message among the new ones, a user message where that forgets reasoning, or
            a tool message that has an id and no name: the whole conversation tells its name.
        """
        roles = [message.get("role") for message in new_messages]
        if (
            not previous_prompt_ids
            or not new_messages
            or any(role not in ("user", "tool") for role in roles)
            or (self.config.retention == "tool_cycle" and "user" in roles)
            or any(_named_elsewhere(message) for message in new_messages)
        ):
            return None
        if self.config.media == "refused":
            refuse_media(new_messages)
        sampled = list(previous_completion_ids)
        stops = set(self.get_stop_token_ids())
        end = next((i + 1 for i, token in enumerate(sampled) if token in stops), None)
        sampled = sampled[:end] if end is not None else [*sampled, self._specials["eot"]]
        pieces: list[Piece] = []
        for index, message in enumerate(new_messages):
            if message["role"] == "tool":
                pieces += self._tool_block(message, index, tool_name(message, ()))
            else:
                text = content_text(message, index)
                pieces += block("user", [Piece(text, index, content=True)], index)
        pieces += [Piece("<|start|>", -1, special=True), Piece("assistant", -1)]
        new = self._tokens(pieces, new_messages)
        return BridgedTokens.of(previous_prompt_ids, sampled, new)


def _named_elsewhere(message: Mapping[str, Any]) -> bool:
    """Whether a tool result has the name of a call that only the whole conversation holds."""
    by_id = message.get("tool_call_id") is not None and not message.get("name")
    return by_id and message.get("role") == "tool"
