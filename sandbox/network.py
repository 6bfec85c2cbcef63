"""What nodes need to reach the outside as this machine does: name servers, certificates, the package index, a proxy."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from configparser import Error, RawConfigParser
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sandbox.errors import SandboxError

NAME_SERVERS = "etc/resolv.conf"
#: Debian's OpenSSL, and with it pip and curl, look here.
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
#: In the order in which pip reads them: what is said later counts.
_PIP_FILES = (
    "/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", f"{sys.prefix}/pip.conf",
)  # fmt: skip
#: Where pip finds packages.
_SOURCES = ("index-url", "extra-index-url", "find-links", "trusted-host")


def files() -> dict[str, bytes]:
    """The files of a new sandbox, by their paths in the root."""
    pip = _settings_of_pip()
    sources = {name: " ".join(filter(_is_elsewhere, pip.get(name, "").split())) for name in _SOURCES}
    proxy = pip.get("proxy") or _proxy(sources["index-url"])
    said = {"cert": f"/{CERTIFICATES}", "proxy": proxy, "no-index": pip.get("no-index", ""), **sources}
    lines = ("[global]\n", *(f"{name} = {value}\n" for name, value in said.items() if value))
    found = {"etc/pip.conf": "".join(lines).encode()}
    if certificates := b"\n".join(file.read_bytes() for file in _bundles(pip.get("cert", ""))):
        found[CERTIFICATES] = certificates
    if (name_servers := Path("/", NAME_SERVERS)).exists():
        found[NAME_SERVERS] = name_servers.read_bytes()
    return found


def _bundles(of_pip: str) -> Iterator[Path]:
    """The files with the certificates that programs of this machine trust, each once."""
    named = (os.environ.get("SSL_CERT_FILE"), os.environ.get("REQUESTS_CA_BUNDLE"), of_pip, f"/{CERTIFICATES}")
    yield from dict.fromkeys(file for name in named if name and (file := Path(name).expanduser().resolve()).is_file())


def _settings_of_pip() -> dict[str, str]:
    """What its files and variables say; what is set for uv alone is taken for pip, too."""
    parser, own = RawConfigParser(), os.environ.get("PIP_CONFIG_FILE", "")
    try:
        # As pip has it: without any if the named one is the null device, and without a user's own if that one is there.
        of_all = [name for name in _PIP_FILES if not (name.startswith("~") and own and Path(own).exists())]
        parser.read([] if own == os.devnull else [Path(name).expanduser() for name in (*of_all, own) if name])
    except Error as error:
        what = f"the settings of pip cannot be read ({str(error).splitlines()[0]})"
        raise SandboxError(what, "correct them: `pip config debug` lists their files") from error
    of_uv = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or ""
    # Before its address it may have a name.
    found = {"index-url": re.sub(r"^[\w.-]+=", "", of_uv)}
    for section in filter(parser.has_section, ("global", "install")):
        found |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    known = (*_SOURCES, "no-index", "cert", "proxy")
    variables = {name: os.environ.get(f"PIP_{name.replace('-', '_').upper()}") for name in known}
    return found | {name: value for name, value in variables.items() if value}


def _is_elsewhere(word: str) -> bool:
    """It is no path: a node does not have the folders of this machine."""
    return not word.startswith(("file:", "/", "~", "."))


def _proxy(index: str) -> str:
    """The proxy between this machine and its package index, or nothing."""
    where, proxies = urlsplit(index or "https:"), getproxies()
    if proxy_bypass(where.hostname or ""):
        return ""
    return proxies.get(where.scheme) or proxies.get("all", "")
