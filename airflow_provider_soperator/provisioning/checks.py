"""Rules that names, keys and sizes have to follow, wherever in a description they stand."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass

from airflow_provider_soperator.provisioning.errors import SpecMistake
from airflow_provider_soperator.provisioning.plain import number
from airflow_provider_soperator.values import is_template

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?")
_PRESET = re.compile(r"(?:(\d+)gpu-)?(\d+)vcpu-(\d+)gb")
_KEY_TYPES = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip


def check_name(what: str, name: str, longest: int) -> None:
    """A name that Kubernetes takes, and that leaves room for what Soperator appends.

    >>> check_name("node set", "gpu_h100", 40)
    Traceback (most recent call last):
    airflow_provider_soperator.provisioning.errors.SpecMistake: 'gpu_h100' cannot be the name of a node set: it has \
lowercase letters, digits and hyphens, begins with a letter and ends with a letter or digit
    """
    if is_template(name):
        return
    if not _NAME.fullmatch(name):
        raise SpecMistake(
            f"{name!r} cannot be the name of a {what}: it has lowercase letters, digits and hyphens, begins with a "
            "letter and ends with a letter or digit"
        )
    if len(name) > longest:
        raise SpecMistake(f"the name of the {what} {name} has {len(name)} letters: it can have {longest}")


def check_version(version: str) -> None:
    """A release of Soperator, as its images are tagged with."""
    if not is_template(version) and not _VERSION.fullmatch(version):
        raise SpecMistake(f"operator_version is {version!r}: name a release of Soperator, such as 4.1.7")


def check_path(what: str, path: str) -> None:
    """A place in the jail. /home is another file system's."""
    if is_template(path):
        return
    if not path.startswith("/") or "/../" in f"{path}/":
        raise SpecMistake(f"{what} is mounted at {path!r}: name an absolute path")
    if path.rstrip("/") == "/home":
        raise SpecMistake(f"{what} is mounted at /home, which is kept for home directories: name another path")


def check_least(what: str, said: object, least: int) -> None:
    """A number that is none at all below some bound."""
    if not is_template(said) and int(number(said, what)) < least:
        raise SpecMistake(f"{what} is {said}: it is at least {least}")


def check_key(key: str) -> None:
    """A public key as sshd takes it: its type, and the data, which says the same type again."""
    if is_template(key):
        return
    if "PRIVATE KEY" in key:
        raise SpecMistake(
            "a private key is among login_keys: nobody else is to see it. Put the public one there, from the file "
            "that ends in .pub, and make a new pair if this has been stored anywhere"
        )
    words = key.split()
    shown = key if len(key) < 40 else f"{key[:40]}…"
    if len(words) < 2 or words[0] not in _KEY_TYPES:
        raise SpecMistake(f"{shown!r} is no public key: one begins with ssh-ed25519, ssh-rsa or the like")
    if not _is_whole(*words[:2]):
        raise SpecMistake(f"the public key {shown!r} is damaged: copy it again, as one line")


def _is_whole(kind: str, text: str) -> bool:
    """Whether the data are fields, each after its length, to the very end, of which the first is the type."""
    try:
        data, fields = base64.b64decode(text, validate=True), []
        while data:
            (length,) = struct.unpack(">I", data[:4])
            if len(data) < 4 + length:
                return False
            fields.append(data[4 : 4 + length])
            data = data[4 + length :]
    except (binascii.Error, struct.error):
        return False
    return len(fields) > 1 and fields[0] == kind.encode()


@dataclass(frozen=True)
class Preset:
    """What a machine of a preset has."""

    gpus: int
    cpus: int
    memory_gb: int


def preset_of(text: str) -> Preset | None:
    """What the name of a preset says; nothing if it is written in another way.

    >>> preset_of("8gpu-128vcpu-1600gb")
    Preset(gpus=8, cpus=128, memory_gb=1600)
    >>> preset_of("16vcpu-64gb").gpus
    0
    """
    found = _PRESET.fullmatch(text)
    return Preset(*(int(number or 0) for number in found.groups())) if found else None
