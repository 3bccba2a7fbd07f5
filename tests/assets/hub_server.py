"""A local server that speaks the part of the hub's API that a download needs.

    GET /api/models/<owner>/<repo>/revision/<commit>?blobs=True     listing with sizes and hashes
    GET /<owner>/<repo>/resolve/<commit>/<path>                     content, Range understood

Data sets are under /api/datasets/ and /datasets/. It can cut a body, change its bytes, or fail.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The server's state and its faults, to be set by a test.

    Attributes:
        repos: (repo type, "owner/name") -> {path: content}.
        large: paths that the hub lists with a sha256, as it does for large files.
        requests: (method, path, Range header) of each request so far.
        cuts: path -> bytes after which each of the next bodies ends, first to last.
        served: path -> bytes sent instead of the listed content.
        stalls: path -> bytes after which a body waits until `stalls` is cleared.
        stalled: set when a body waits.
        redirects: path -> address that a request for its content is sent to.
        tokens: Authorization header of each request so far.
        status: path -> status sent instead of a body.
        answered_commit: the commit that the listing claims to be of.
        no_range: answer a Range request with the whole file.
    """

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.large: set[str] = set()
        self.requests: list[tuple[str, str, str | None]] = []
        self.cuts: dict[str, list[int]] = {}
        self.served: dict[str, bytes] = {}
        self.stalls: dict[str, int] = {}
        self.stalled = threading.Event()
        self.redirects: dict[str, str] = {}
        self.tokens: list[str | None] = []
        self.status: dict[str, int] = {}
        self.answered_commit = COMMIT
        self.no_range = False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def bodies(self, path: str) -> list[str | None]:
        """Range header of each request for a file's content."""
        return [r for _, url, r in self.requests if url.endswith(f"/resolve/{COMMIT}/{path}")]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = handler.path.partition("?")[0]
        self.requests.append((handler.command, url, handler.headers.get("Range")))
        self.tokens.append(handler.headers.get("Authorization"))
        listing = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)/revision/(.+)", url)
        content = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url)
        if listing:
            self._list(handler, *listing.groups())
        elif content:
            kind = "dataset" if content[1] else "model"
            self._content(handler, kind, *content.groups()[1:])
        else:
            self._fail(handler, 404, None)

    def _list(self, handler: BaseHTTPRequestHandler, kind: str, repo: str, commit: str) -> None:
        files = self.repos.get((kind, repo))
        if files is None:
            return self._fail(handler, 404, "RepoNotFound")
        if commit != COMMIT:
            return self._fail(handler, 404, "RevisionNotFound")
        siblings = []
        for path, data in files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict = {"rfilename": path, "size": len(data), "blobId": blob}
            if path in self.large:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        body = json.dumps(
            {"id": repo, "sha": self.answered_commit, "siblings": siblings, "tags": []}
        ).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _content(
        self, handler: BaseHTTPRequestHandler, kind: str, repo: str, commit: str, path: str
    ) -> None:
        files = self.repos.get((kind, repo), {})
        if path in self.status:
            return self._fail(handler, self.status[path], None)
        if path not in files or commit != COMMIT:
            return self._fail(handler, 404, "EntryNotFound")
        if path in self.redirects:
            handler.send_response(302)
            handler.send_header("Location", self.redirects[path])
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return None
        data = self.served.get(path, files[path])
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
        start = int(asked[1]) if asked and not self.no_range else 0
        handler.send_response(206 if start else 200)
        handler.send_header("ETag", '"x"')
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("Content-Length", str(len(data) - start))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        if handler.command == "HEAD":
            return None
        cuts = self.cuts.get(path, [])
        if cuts:
            handler.wfile.write(data[start : start + cuts.pop(0)])
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif path in self.stalls:
            handler.wfile.write(data[start : start + self.stalls[path]])
            handler.wfile.flush()
            self.stalled.set()
            while path in self.stalls:
                time.sleep(0.01)
            handler.close_connection = True
        else:
            handler.wfile.write(data[start:])
        return None

    def _fail(self, handler: BaseHTTPRequestHandler, status: int, code: str | None) -> None:
        handler.send_response(status)
        if code:
            handler.send_header("X-Error-Code", code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
