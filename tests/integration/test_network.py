"""A node reaches the outside as this machine does."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sandbox import network
from sandbox.kube.certificates import ensure_certificates
from tests.integration.cluster import Cluster

#: Of the root, for one command: the files in a folder stand in the place of its own.
IN_PLACE = """\
cd /root/network
find . -type f | while read -r file; do mount --bind "$file" "/$file"; done
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index with one package, with a certificate of an authority that nobody knows."""
    (tmp_path / "simple/greeting").mkdir(parents=True)
    (tmp_path / "simple/greeting/index.html").write_text('<a href="greeting-1.0-py3-none-any.whl">greeting</a>')
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ensure_certificates(tmp_path).server_context()
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}/simple/"
        server.shutdown()


def test_pip_on_a_node_finds_what_pip_finds_here(
    cluster: Cluster, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cluster.sandbox.init.root()
    assert all((root / path).is_file() for path in network.files())
    monkeypatch.setenv("PIP_INDEX_URL", index)
    monkeypatch.setenv("SSL_CERT_FILE", str(ensure_certificates(tmp_path).ca_file))
    for path, content in network.files().items():
        file = root / "root/network" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    try:
        # As in each virtual environment that is made there.
        pip = 'set -- /usr/share/python-wheels/pip-*.whl; python3 "$1/pip" index versions greeting'
        said = cluster.run("unshare", "--mount", "sh", "-euc", IN_PLACE + pip)
    finally:
        cluster.run("rm", "-rf", "/root/network")
    assert said.startswith("greeting (1.0)")
