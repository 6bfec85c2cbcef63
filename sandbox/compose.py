"""Writes the files of a new sandbox into its own layer: configuration, keys, accounts' keys, the power manager."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sandbox import config, network
from sandbox.cloud.slurm_files import initial_files
from sandbox.private import write_private
from sandbox.settings import LOOPBACK, USER, Paths, Settings

INSIDE = Path(__file__).parent / "inside"


class Layer:
    """The upper layer of the overlay, written to before it is mounted.

    A folder that exists below as well keeps its owner and mode: the overlay takes them from the upper one.
    """

    def __init__(self, upper: Path, lower: Path) -> None:
        self._upper = upper
        self._lower = lower

    def place(self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root") -> None:
        target = self._upper / path
        self.folder(str(Path(path).parent))
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        os.chown(target, *self._ids(owner))

    def folder(self, path: str, *, mode: int | None = None, owner: str | None = None) -> None:
        """A folder like the one below, or with the mode and owner given; its parents are like those below."""
        for part in [*reversed(Path(path).parents), Path(path)]:
            target, below = self._upper / part, self._lower / part
            if target.exists():
                continue
            target.mkdir()
            if below.exists():
                original = below.stat()
                target.chmod(original.st_mode & 0o7777)
                os.chown(target, original.st_uid, original.st_gid)
        if mode is not None:
            (self._upper / path).chmod(mode)
        if owner is not None:
            os.chown(self._upper / path, *self._ids(owner))

    def _ids(self, account: str) -> tuple[int, int]:
        for line in (self._lower / "etc/passwd").read_text().splitlines():
            name, _, uid, gid, *_ = line.split(":")
            if name == account:
                return int(uid), int(gid)
        raise KeyError(account)


def compose(settings: Settings, lower: Path) -> None:
    """Write all that distinguishes this sandbox from the root that it shares with others."""
    paths = settings.paths
    layer = Layer(paths.upper, lower)
    for path, content in config.all_files(settings).items():
        # slurmdbd refuses a configuration that others could read.
        layer.place(path, content, mode=0o600 if path.endswith("slurmdbd.conf") else 0o644)
    for path, text in initial_files(settings).items():
        layer.place(path, text)
    for path, data in network.files().items():
        layer.place(path, data)
    for script in INSIDE.iterdir():
        layer.place(f"opt/soperator/bin/{script.name}", script.read_bytes(), mode=0o755)
    layer.folder("opt/soperator/etc", mode=0o700)
    layer.folder("var/spool/slurmd", mode=0o755)
    layer.folder("var/log/slurm", mode=0o755, owner="root")
    layer.folder("opt/soperator-outputs", mode=0o1777)
    layer.folder(config.CHECK_OUTPUTS.lstrip("/"), mode=0o1777)
    layer.place("etc/munge/munge.key", secrets.token_bytes(128), mode=0o400, owner="munge")
    _jwt_key(layer, paths)
    _ssh_keys(layer, settings)


def _jwt_key(layer: Layer, paths: Paths) -> None:
    key = secrets.token_bytes(32)
    layer.place(config.JWT_KEY.lstrip("/"), key, mode=0o600)
    write_private(paths.secrets / "jwt_hs256.key", key)


def _ssh_keys(layer: Layer, settings: Settings) -> None:
    private, public = _key_pair()
    write_private(settings.paths.secrets / "id_ed25519", private)
    for home, owner in (("root", "root"), (f"home/{USER}", USER)):
        layer.folder(f"{home}/.ssh", mode=0o700, owner=owner)
        layer.place(f"{home}/.ssh/authorized_keys", public, mode=0o600, owner=owner)
    host_private, host_public = _key_pair()
    layer.place("etc/ssh/ssh_host_ed25519_key", host_private, mode=0o600)
    layer.place("etc/ssh/ssh_host_ed25519_key.pub", host_public)
    known = f"[{LOOPBACK}]:{settings.ports.ssh} {host_public.decode()}"
    (settings.paths.secrets / "known_hosts").write_text(known)


def _key_pair() -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"
