"""Everything that can go wrong with a search, as one tree of exceptions.

    GlimmerError
      SearchError             a search brought no answer; carries `query` and `url`
        SearchTimeout         none within the time allowed, retries included
        SearchRefused         no connection, or it was cut: the service is down
        SearchHTTPError       an answer other than 200; carries `status`
        SearchProtocolError   a 200 that is no Search-R1 answer, e.g. {"result": []}
      ServiceError            the service did not start, is not the one meant, or died

A search that finds nothing does not exist: an index of n passages always has n nearest ones. So an
empty answer is an error, and nothing here is ever turned into "no passage found".
"""

from __future__ import annotations

from glimmer.errors import GlimmerError


class SearchError(GlimmerError):
    """A search brought no answer.

    Attributes:
        query: the text searched for.
        url: the service asked.
        attempts: requests sent for it.
    """

    def __init__(self, message: str, *, query: str, url: str, attempts: int = 1) -> None:
        super().__init__(message)
        self.query, self.url, self.attempts = query, url, attempts


class SearchTimeout(SearchError):
    """No answer within the time allowed for one search, retries included."""


class SearchRefused(SearchError):
    """The service does not accept connections, or cut one before it had answered."""


class SearchHTTPError(SearchError):
    """The service answered with a status other than 200.

    Attributes:
        status: the HTTP status code.
        retry_after_s: seconds after which to come back, if the answer says so.
    """

    def __init__(
        self,
        message: str,
        *,
        query: str,
        url: str,
        status: int,
        retry_after_s: float | None = None,
        attempts: int = 1,
    ) -> None:
        super().__init__(message, query=query, url=url, attempts=attempts)
        self.status, self.retry_after_s = status, retry_after_s


class SearchProtocolError(SearchError):
    """The service answered 200 with something that is not a Search-R1 answer."""


class ServiceError(GlimmerError):
    """The retrieval service did not start, is not the one that was meant, or died."""
