"""The literal text of each kind of block, as the released template writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_TOOLS_BEFORE = """\


In this environment you have access to a set of tools you can use to answer the user's question.

You can invoke a function by writing a "<atem:function_calls>" block like the following:
<atem:function_calls>
<atem:invoke name="$FUNCTION_NAME">
<atem:parameter name="$PARAMETER_NAME">$PARAMETER_VALUE</atem:parameter>
...
</atem:invoke>
</atem:function_calls>

String and scalar parameters should be specified as is, while lists and objects should use JSON \
format. Note that spaces for string values are not stripped. The output is not expected to be \
valid XML and is parsed with regular expressions.
Here are the functions available in JSONSchema format:
// Tool metadata
"""

_TOOLS_AFTER = """

Here's an example of how to call a function in the tool set:
(If the tool namespace is not specified, invoke the function directly as `example_function_name` \
rather than `example_tool_name.example_function_name`)

to=example_tool_name.example_function_name

<atem:function_calls>
<atem:invoke name="example_tool_name.example_function_name">
<atem:parameter name="example_parameter_1">value_1</atem:parameter>
<atem:parameter name="example_parameter_2">This is the value for the second parameter
that can span
"multiple" lines
</atem:parameter>
</atem:invoke>
</atem:function_calls>"""

# The template has no case-insensitive replace; it names these four spellings.
_EFFORT = ("Reasoning effort", "Reasoning Effort", "reasoning effort", "REASONING EFFORT")


def is_mapping(value: Any) -> bool:
    """isinstance(value, Mapping), several times as fast for what it is nearly always."""
    return type(value) is dict or isinstance(value, Mapping)


def as_text(value: Any, field: str) -> str:
    """A value that must be text, as the template only joins texts.

    Raises:
        ValueError: it is none; names the field.
    """
    if not isinstance(value, str):
        raise ValueError(f"{field}: found {type(value).__name__}, expected text")
    return value


def to_json(value: Any) -> str:
    """JSON as the template's `tojson` writes it: no escapes for HTML or for other scripts."""
    return json.dumps(value, ensure_ascii=False)


def default_system_text(knowledge_cutoff: str, current_date: str) -> str:
    """The system message of a conversation without one, up to the strength line."""
    return (
        f"You are a helpful AI assistant.\nKnowledge cutoff: {knowledge_cutoff}.\n"
        f"Current date: {current_date}."
    )


def system_text(message: Message, index: int) -> tuple[str, bool]:
    """Text of a system message, and whether it names a reasoning strength itself."""
    text = content_text(message, index)
    for spelling in _EFFORT:
        word = spelling.split()[1]
        strength = {"effort": "strength", "Effort": "Strength", "EFFORT": "STRENGTH"}[word]
        text = text.replace(spelling, f"{spelling.split()[0]} {strength}")
    return text, "reasoning strength" in text.lower()


def namespaces(tools: Sequence[Message]) -> list[str]:
    """Tool namespaces (the name up to its first dot) in order of first appearance."""
    return list(dict.fromkeys(function_of(tool)["name"].split(".")[0] for tool in tools))


def function_of(tool: Message) -> Message:
    """The function of a tool or call, with or without OpenAI's wrapper."""
    return tool["function"] if "function" in tool else tool


def check_tools(tools: Any) -> None:
    """Raises ValueError unless these are tools, each with a name."""
    if not isinstance(tools, list | tuple):
        raise ValueError(f"tools: found {type(tools).__name__}, expected a list of tool schemas")
    for index, tool in enumerate(tools):
        function = function_of(tool) if isinstance(tool, Mapping) else tool
        if not isinstance(function, Mapping):
            raise ValueError(f"tools[{index}]: found {type(function).__name__}, expected a mapping")
        as_text(function.get("name"), f"tools[{index}].name")


def system_tail(tools: Sequence[Message], descriptions: Mapping[str, str]) -> str:
    """Tool schemas, if any, and the line of valid recipients."""
    names = namespaces(tools)
    out = ""
    if tools:
        out += _TOOLS_BEFORE
        for name in names:
            description = to_json(descriptions.get(name, ""))
            out += f'{{"name": {to_json(name)}, "description": {description}}}\n'
        out += "// Function schemas"
        for index, tool in enumerate(tools):
            function = function_of(tool)
            try:
                fields = ", ".join(
                    f'"{key}": {to_json(function.get(key))}'
                    for key in ("name", "description", "parameters")
                )
            except (TypeError, ValueError) as error:
                raise ValueError(f"tools[{index}]: no JSON ({error})") from error
            out += f"\n{{{fields}}}"
        out += _TOOLS_AFTER
    recipients = ['"self"', *(f'"{name}.*"' for name in names), '"user"']
    return f"{out}\n\n# Valid recipients: {', '.join(recipients)}."


def content_text(message: Message, index: int) -> str:
    """A message's content as text; images and video become their placeholder tokens.

    Raises:
        ValueError: neither text, nor parts, nor null.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(
            f"messages[{index}].content: found {type(content).__name__}, expected text, a list of "
            "parts or null"
        )
    out = ""
    for position, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            out += part
        elif kind == "text":
            out += as_text(part.get("text", ""), f"messages[{index}].content[{position}].text")
        elif kind in ("image", "image_url"):
            out += "<|patch|>"
        elif kind in ("video", "video_url"):
            out += "<|video|>"
    return out


def refuse_media(messages: Sequence[Message]) -> None:
    """Raises ValueError at the first image or video part, naming it."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for position, part in enumerate(content if isinstance(content, list | tuple) else ()):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image", "image_url", "video", "video_url"):
                raise ValueError(
                    f"messages[{index}].content[{position}]: found a part of type {kind!r}, but "
                    "this renderer is set to text only (media: refused)"
                )


def tool_name(message: Message, messages: Sequence[Message]) -> str:
    """A tool result's name: its own, or by call id (the last match wins), or the id itself."""
    if message.get("name"):
        return message["name"]
    wanted = message.get("tool_call_id")
    found = wanted or ""
    if wanted is not None:
        for index, other in enumerate(messages):
            for position, call in enumerate(calls_in(other, index)):
                if _field(call, "id") == wanted:
                    found = call_function(call, index, position)[0]
    return found


def tool_parts(message: Message, index: int, name: str) -> tuple[str, str, str]:
    """A tool result: what stands before its content, the content, what stands after."""
    as_text(name, f"messages[{index}].name")
    return f'<tool_output name="{name}">\n', content_text(message, index), "\n</tool_output>"


def _field(call: Any, key: str) -> Any:
    return call.get(key) if isinstance(call, Mapping) else getattr(call, key, None)


def calls_in(message: Message, index: int) -> Sequence[Any]:
    """The calls of a message.

    Raises:
        ValueError: `tool_calls` is no list.
    """
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise ValueError(
            f"messages[{index}].tool_calls: found {type(calls).__name__}, expected a list of calls"
        )
    return calls


def call_function(call: Any, index: int, position: int) -> tuple[str, Any]:
    """(name, arguments) of a call: a mapping with or without wrapper, or a parsed call object.

    Raises:
        ValueError: it is neither, or has no name. (A parsed call may lack one: its own is empty.)
    """
    function = function_of(call) if is_mapping(call) else call
    if is_mapping(function):
        name = function.get("name")
        if not isinstance(name, str):
            as_text(name, f"messages[{index}].tool_calls[{position}].function.name")
        return name, function.get("arguments")
    if function is not call or not (hasattr(call, "name") and hasattr(call, "arguments")):
        raise ValueError(
            f"messages[{index}].tool_calls[{position}]: found {type(function).__name__}, expected "
            "a call"
        )
    return call.name or "", call.arguments


def call_text(call: Any, index: int, position: int) -> tuple[str, str]:
    """(name, ATEM block) of one call.

    Raises:
        ValueError: the arguments are not a mapping.
    """
    name, arguments = call_function(call, index, position)
    if not is_mapping(arguments):
        raise ValueError(
            f"messages[{index}].tool_calls[{position}].function.arguments: found "
            f"{type(arguments).__name__}, expected a mapping (decode JSON text first)"
        )
    out = f'<atem:function_calls>\n<atem:invoke name="{name}">\n'
    for key, value in arguments.items():
        try:
            text = value_text(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"messages[{index}].tool_calls[{position}].function.arguments[{key!r}]: no JSON "
                f"({error})"
            ) from error
        if not isinstance(key, str):
            field = f"messages[{index}].tool_calls[{position}].function.arguments, key {key!r}"
            as_text(key, field)
        out += f'<atem:parameter name="{key}">{text}</atem:parameter>\n'
    return name, f"{out}</atem:invoke>\n</atem:function_calls>"


def value_text(value: Any) -> str:
    """A parameter's value: strings and numbers as they are, lists and objects as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, Mapping | list | tuple):
        return to_json(value)
    return str(value)


def assistant_blocks(message: Message, index: int, goes_on: bool) -> list[tuple[str, str, str]]:
    """(recipient, text, end token) of each channel of an assistant message.

    Args:
        goes_on: the next message is the assistant's too.
    """
    blocks = []
    reasoning = message.get("reasoning_content")
    if reasoning:
        text = as_text(reasoning, f"messages[{index}].reasoning_content")
        blocks.append(("self", text, "<|eom|>"))
    calls = calls_in(message, index)
    for position, call in enumerate(calls):
        last = position + 1 == len(calls)
        end = "<|eot|>" if last and not goes_on else "<|eom|>"
        name, text = call_text(call, index, position)
        blocks.append((name, text, end))
    if not calls:
        recipient = as_text(message.get("recipient") or "user", f"messages[{index}].recipient")
        end_turn = message.get("end_turn")
        if end_turn is None:
            end_turn = recipient == "user"
        text = content_text(message, index)
        blocks.append((recipient, text, "<|eot|>" if end_turn else "<|eom|>"))
    return blocks
