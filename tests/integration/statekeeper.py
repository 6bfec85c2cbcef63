"""Object storage for Terraform's state, as far as its backend of type s3 asks for it: a double.

The published recipe keeps its state so. A lock is an object beside the state, which outlives those who made it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_STATE = "/tfstate/slurm-k8s.tfstate"
_LOCK = f"{_STATE}.tflock"


class StateKeeper(ThreadingHTTPServer):
    """Keeps objects of one bucket."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        #: What it answers in place of taking a state, and of everything.
        self.refusal = ""
        self.refusal_of_all = ""
        self.env = {"AWS_ACCESS_KEY_ID": "NAKI0000STUB", "AWS_SECRET_ACCESS_KEY": "not-told-to-anybody"}

    @property
    def backend(self) -> dict[str, Any]:
        """What the recipe's .envrc writes, but for the lock and the path in place of a host for each bucket."""
        skipped = ("credentials_validation", "requesting_account_id", "region_validation", "metadata_api_check")
        return {
            "s3": {
                "bucket": "tfstate",
                "key": "slurm-k8s.tfstate",
                "region": "eu-north1",
                "endpoints": {"s3": f"http://127.0.0.1:{self.server_port}"},
                "use_path_style": True,
                "use_lockfile": True,
                "skip_s3_checksum": True,
                "max_retries": 1,
                **{f"skip_{name}": True for name in skipped},
            }
        }

    @property
    def lock(self) -> dict[str, Any] | None:
        said = self.objects.get(_LOCK)
        return json.loads(said) if said else None

    @lock.setter
    def lock(self, said: dict[str, Any] | None) -> None:
        self.objects.pop(_LOCK, None)
        if said:
            self.objects[_LOCK] = json.dumps(said).encode()

    @property
    def resources(self) -> list[str]:
        found = json.loads(self.objects.get(_STATE, b"{}")).get("resources", [])
        return sorted(f"{one.get('module', '')}.{one['name']}" for one in found)


class _Handler(BaseHTTPRequestHandler):
    server: StateKeeper
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "list-type" in query:
            return self._answer(200, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
        if path not in self.server.objects:
            return self._refuse(404, "NoSuchKey")
        self._answer(200, self.server.objects[path])

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.refusal and path == _STATE:
            return self._refuse(403, self.server.refusal)
        if self.headers.get("If-None-Match") == "*" and path in self.server.objects:
            return self._refuse(412, "PreconditionFailed")
        self.server.objects[path] = body
        self._answer(200)

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path.partition("?")[0], None)
        self._answer(204)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.server.refusal_of_all:
            self.close_connection = True
            self._refuse(400, self.server.refusal_of_all)
            return False
        return True

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@contextmanager
def state_keeper() -> Iterator[StateKeeper]:
    with StateKeeper() as keeper:
        thread = threading.Thread(target=keeper.serve_forever, daemon=True)
        thread.start()
        try:
            yield keeper
        finally:
            keeper.shutdown()
            thread.join()
