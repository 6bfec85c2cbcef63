"""What a new sandbox takes from this machine: only what means something on its nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox import network
from sandbox.errors import SandboxError


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without settings: its file of pip's is the one that is returned."""
    for name in list(os.environ):
        if name.upper().startswith(("PIP_", "UV_", "SSL_", "REQUESTS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    monkeypatch.setattr(network, "_PIP_FILES", (str(file),))
    return file


def settings_of_nodes() -> list[str]:
    return network.files()["etc/pip.conf"].decode().splitlines()


CERT = "cert = /etc/ssl/certs/ca-certificates.crt"


def test_a_machine_without_settings_has_none_to_give() -> None:
    assert settings_of_nodes() == ["[global]", CERT]


def test_addresses_are_taken_and_paths_are_not(machine: Path) -> None:
    machine.write_text(
        "[global]\nindex-url = https://index.example/simple/\nconstraint = /etc/constraints.txt\n"
        "extra_index_url =\n  file:///opt/pypi/simple\n  https://more.example/100%25/simple/\n"
        "[install]\nfind-links = /opt/wheels\ntrusted-host = index.example\n"
    )
    assert settings_of_nodes() == [
        "[global]",
        CERT,
        "index-url = https://index.example/simple/",
        "extra-index-url = https://more.example/100%25/simple/",
        "trusted-host = index.example",
    ]


def test_a_variable_goes_before_a_file_and_pips_own_before_that_of_uv(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple/")
    assert "index-url = https://uv.example/simple/" in settings_of_nodes()
    machine.write_text("[global]\nindex-url = https://file.example/simple/\n")
    assert "index-url = https://file.example/simple/" in settings_of_nodes()
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple/")
    assert "index-url = https://variable.example/simple/" in settings_of_nodes()
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert "index-url = https://uv.example/simple/" in settings_of_nodes()


def test_a_machine_that_has_no_index_gives_none(machine: Path) -> None:
    machine.write_text("[global]\nno-index = true\nfind-links = https://wheels.example/\n")
    assert settings_of_nodes() == ["[global]", CERT, "no-index = true", "find-links = https://wheels.example/"]


def test_an_index_of_uv_may_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "inside=https://uv.example/simple/?a=b")
    assert "index-url = https://uv.example/simple/?a=b" in settings_of_nodes()


def test_the_proxy_is_that_of_the_way_to_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///opt/pypi/simple")
    assert "proxy = http://proxy.example:3128" in settings_of_nodes()
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.inside.example/simple/")
    assert settings_of_nodes() == ["[global]", CERT, "index-url = https://pypi.inside.example/simple/"]
    monkeypatch.setenv("PIP_PROXY", "http://other.example:3128")
    assert "proxy = http://other.example:3128" in settings_of_nodes()


def test_nodes_trust_whom_any_program_here_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = network.files().get(network.CERTIFICATES, b"")
    own = tmp_path / "own.pem"
    # Its last line need not have an end.
    own.write_bytes(b"a certificate of Ren\xe9")
    # A folder, as REQUESTS_CA_BUNDLE may be, is not read; the same file is read once.
    for name, value in (("SSL_CERT_FILE", own), ("PIP_CERT", own), ("REQUESTS_CA_BUNDLE", tmp_path)):
        monkeypatch.setenv(name, str(value))
    together = network.files()[network.CERTIFICATES]
    assert together == b"\n".join(filter(None, (b"a certificate of Ren\xe9", before)))


def test_settings_that_pip_could_not_read_either_are_named(machine: Path) -> None:
    machine.write_text("index-url = https://index.example/simple/\n")
    with pytest.raises(SandboxError, match=r"settings of pip cannot be read .*pip config debug"):
        network.files()
