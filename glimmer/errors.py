"""The project's exceptions. Scripts print them as one message, without a traceback."""

from __future__ import annotations


class GlimmerError(Exception):
    """Base of every error the project raises on purpose: bad input, failed gate, lost service.

    The message names the file or setting at fault, the value found, the value expected and the
    way out.
    """


class ConfigError(GlimmerError):
    """A setting is missing, misspelt, of the wrong type or out of range."""


class DataError(GlimmerError):
    """An input file does not have the documented format."""


class IntegrityError(GlimmerError):
    """A file is not the one that was promised: wrong sha256, truncated, of another corpus."""


class GateFailed(GlimmerError):
    """A gate measured a figure outside its threshold. Its verdict file has been written."""
