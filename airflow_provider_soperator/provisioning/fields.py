"""Fields of a cluster's description: their plain form, their checks, and the errors."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm.notations import parts_of_key
from airflow_provider_soperator.values import is_template, listed

T = TypeVar("T")

#: Numbers and switches may be templates, which render to strings.
Number = int | str
Switch = bool | str
_ON, _OFF = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_PRESET = re.compile(r"(?:(\d+)gpu-)?(\d+)vcpu-(\d+)gb")
_KEY_TYPES = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip


class SpecMistake(ValueError):
    """A wrong description of a cluster. The message ends with the remedy."""


class NotKnownYet(Exception):
    """A property that a cluster gets some time after it was made; a retry may find it."""

    retryable = True


def write(described: Any) -> Any:
    """A description as plain data, without fields that have their defaults."""
    if is_dataclass(described) and not isinstance(described, type):
        said = {one.name: (getattr(described, one.name), one.default) for one in fields(described)}
        return {name: write(value) for name, (value, default) in said.items() if value not in (default, {})}
    if isinstance(described, Mapping):
        return {name: write(value) for name, value in described.items()}
    if isinstance(described, (list, tuple)):
        return [write(one) for one in described]
    return described


def digest(*described: Any) -> str:
    """The digest of descriptions, and of plain data."""
    return sha256(json.dumps(write(described), sort_keys=True, default=str).encode()).hexdigest()


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None, also within dicts; of these, none that becomes empty.

    >>> given(a=1, b=None, c={"d": None}, e={})
    {'a': 1, 'e': {}}
    """
    kept = {name: (given(**one) or None) if isinstance(one, dict) and one else one for name, one in values.items()}
    return {name: one for name, one in kept.items() if one is not None}


def take_texts(one: object, *names: str) -> None:
    """Take a text for its only item in these lists of a description."""
    for name in names:
        object.__setattr__(one, name, tuple(listed(getattr(one, name))))


def read(kind: type[T], said: Any, where: str) -> T:
    """A description from plain data; ``SpecMistake`` names the place of an error."""
    if not isinstance(said, Mapping):
        raise SpecMistake(f"{where} must be a mapping, got {said!r}")
    hints = get_type_hints(kind)
    for name in said:
        if name not in hints:
            raise SpecMistake(f"{where} has no field {name!r}: {name_remedy(name, hints)}")
    try:
        return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in said.items()})
    except TypeError as error:
        raise SpecMistake(f"{where} is incomplete: {error}") from None


def _value(hint: Any, said: Any, where: str) -> Any:
    if hint == Number:
        return _number(said, where)
    if hint == Switch:
        return _switch(said, where)
    if get_origin(hint) in (Union, types.UnionType):
        # A template may render to nothing.
        if said in (None, "", "None"):
            return None
        words = [word for one in get_args(hint) if get_origin(one) is Literal for word in get_args(one)]
        if said in words:
            return said
        # X | None, where X may itself be a union.
        rest = tuple(one for one in get_args(hint) if one is not type(None) and get_origin(one) is not Literal)
        return _value(reduce(or_, rest), said, where)
    if get_origin(hint) is tuple:
        if isinstance(said, (str, Mapping)) or not hasattr(said, "__iter__"):
            raise SpecMistake(f"{where} must be a list, got {said!r}")
        return tuple(_value(get_args(hint)[0], one, f"{where}[{place}]") for place, one in enumerate(said))
    if hint is str and not isinstance(said, str):
        # YAML parses 1.32 as a number.
        raise SpecMistake(f"{where} must be a string, got {said!r}: put it in quotes")
    if isinstance(hint, type) and is_dataclass(hint):
        return said if isinstance(said, hint) else read(hint, said, where)
    return said


def _number(said: Any, where: str) -> Number:
    if is_template(said):
        return str(said)
    try:
        if isinstance(said, (bool, float)):
            raise ValueError
        return int(said)
    except (TypeError, ValueError):
        raise SpecMistake(f"{where} must be a whole number, got {said!r}") from None


def _switch(said: Any, where: str) -> Switch:
    if isinstance(said, bool) or is_template(said):
        return said  # type: ignore[no-any-return]
    word = str(said).lower()
    if word not in _ON | _OFF:
        raise SpecMistake(f"{where} must be true or false, got {said!r}")
    return word in _ON


def is_since(version: str, *release: int) -> bool:
    """True for a release of Soperator from this one on.

    >>> is_since("4.1.7", 4, 0), is_since("4.1.7", 5, 0)
    (True, False)
    """
    return release_of(version)[:2] >= release


def release_of(version: str) -> tuple[int, ...]:
    """The numbers of a release, which can be compared.

    >>> release_of("4.1.7-dev3")
    (4, 1, 7)
    """
    return tuple(map(int, re.findall(r"\d+", version.partition("-")[0])))


def check_name(what: str, name: str, longest: int) -> None:
    """Raise ``SpecMistake`` for a name that Kubernetes rejects, or that is too long for Soperator's suffixes."""
    if is_template(name):
        return
    if not _NAME.fullmatch(name):
        raise SpecMistake(
            f"{name!r} is not a name of a {what}: use lowercase letters, digits and hyphens, begin with a letter and "
            "end with a letter or digit"
        )
    if len(name) > longest:
        raise SpecMistake(f"the name of the {what} {name} must have at most {longest} characters, got {len(name)}")


def check_path(what: str, path: str) -> None:
    """Raise ``SpecMistake`` unless it is a path in the jail. /home is another file system."""
    if is_template(path):
        return
    if not path.startswith("/") or "/../" in f"{path}/":
        raise SpecMistake(f"{what} must be mounted at an absolute path, got {path!r}")
    if path.rstrip("/") == "/home":
        raise SpecMistake(f"{what} is mounted at /home, which is for home directories: use another path")


def check_least(what: str, said: object, least: int, *, most: object = None) -> None:
    """Raise ``SpecMistake`` for a number that is too small, or larger than the size of the node set."""
    if is_template(said):
        return
    if (number := int(_number(said, what))) < least:
        raise SpecMistake(f"{what} must be >= {least}, got {said}")
    if most is not None and not is_template(most) and number > int(str(most)):
        raise SpecMistake(f"{what} must be <= its size {most}, got {said}")


def check_one_of(what: str, said: object, known: Sequence[str]) -> None:
    if said is not None and not is_template(said) and said not in known:
        remedy = name_remedy(said, known, "")
        raise SpecMistake(f"{what} must be one of {', '.join(known)}, got {said!r}" + (remedy and f": {remedy}"))


def check_part(what: str, said: object, kind: type) -> None:
    """Raise ``SpecMistake`` for a value of another kind."""
    if said is not None and not isinstance(said, kind) and not is_template(said):
        first = fields(kind)[0].name
        raise SpecMistake(f"{what} is {said!r}: write {kind.__name__}({first}=…)")


def check_parts(described: object) -> None:
    """Raise ``SpecMistake`` for a field that is to have a part of the cluster, or a list of them, and has not."""
    for name, hint in get_type_hints(type(described)).items():
        said = getattr(described, name)
        for kind in (hint, *get_args(hint)):
            for one in said if isinstance(said, (list, tuple)) else [said]:
                if is_dataclass(kind):
                    check_part(name, one, kind)  # type: ignore[arg-type]


def check_key(key: str) -> None:
    """Raise ``SpecMistake`` unless it is a public key for sshd: a type, and data that repeats the type."""
    if is_template(key):
        return
    if "PRIVATE KEY" in key:
        raise SpecMistake(
            "login_keys contains a private key: use the public key, from the file that ends in .pub, and make a new "
            "pair if this key was stored anywhere"
        )
    words = key.split()
    shown = key if len(key) < 40 else f"{key[:40]}…"
    if len(words) < 2 or words[0] not in _KEY_TYPES:
        raise SpecMistake(f"{shown!r} is not a public key, which begins with ssh-ed25519, ssh-rsa or the like")
    parts = parts_of_key(words[1])
    if len(parts) < 2 or parts[0] != words[0].encode():
        raise SpecMistake(f"the public key {shown!r} is damaged: copy it again, as one line")


@dataclass(frozen=True)
class Preset:
    """GPUs, vCPUs and memory of a machine."""

    gpus: int
    cpus: int
    memory_gb: int


def preset_of(text: str) -> Preset | None:
    """The preset of a name; None if the name has another form.

    >>> preset_of("8gpu-128vcpu-1600gb"), preset_of("16vcpu-64gb")
    (Preset(gpus=8, cpus=128, memory_gb=1600), Preset(gpus=0, cpus=16, memory_gb=64))
    """
    found = _PRESET.fullmatch(text)
    return Preset(*(int(count or 0) for count in found.groups())) if found else None
