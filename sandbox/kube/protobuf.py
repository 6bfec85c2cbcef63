"""Reads the protobuf bodies that kubectl sends to create built-in objects: since 1.32 it offers no other."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache
from typing import Any

from sandbox.kube.errors import ApiError, bad_request
from sandbox.kube.objects import Object, timestamp
from sandbox.kube.protobuf_schema import MESSAGES

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


def decode(body: bytes) -> Object:
    """The object in a protobuf body, as it would have been sent in JSON."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not a Kubernetes protobuf message")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        kind = {number: value.decode() for number, value in _fields(envelope[1])}
        return {"apiVersion": kind[1], "kind": kind[2], **_message(kind[2], envelope[2])}
    except (KeyError, IndexError, UnicodeDecodeError) as problem:
        raise bad_request(f"error decoding the body: {problem!r}") from None


@cache
def _schema() -> dict[str, dict[int, tuple[str, str]]]:
    messages: dict[str, dict[int, tuple[str, str]]] = {}
    for entry in re.findall(r"^(\w+): (.+(?:\n  .+)*)", MESSAGES, re.MULTILINE):
        fields = (field.split("=") for field in entry[1].split())
        messages[entry[0]] = {
            int(number): (name.partition(":")[0], name.partition(":")[2] or "string") for number, name in fields
        }
    return messages


def _message(name: str, data: bytes) -> Object:
    known = _schema().get(name)
    if known is None:
        raise _unreadable(name)
    result: Object = {}
    for number, value in _fields(data):
        if number not in known:
            raise _unreadable(f"field {number} of {name}")
        field, type_ = known[number]
        if type_ == "-":
            continue
        if type_.endswith("!"):
            result.update(_message(type_[:-1], value))
        elif type_.endswith("[]"):
            result.setdefault(field, []).append(_value(type_[:-2], value))
        elif type_.startswith("map:"):
            entry = dict(_fields(value))
            result.setdefault(field, {})[entry.get(1, b"").decode()] = _value(type_[4:], entry.get(2, b""))
        elif (read := _value(type_, value)) not in ("", None):
            # Go writes all strings, set or not.
            result[field] = read
    return result


def _value(type_: str, value: Any) -> Any:
    if type_ == "string":
        return value.decode()
    if type_ == "int":
        return value - (1 << 64) if value >> 63 else value
    if type_ == "bool":
        return bool(value)
    if type_ == "bytes":
        return base64.b64encode(value).decode()
    parts = dict(_fields(value)) if type_ in ("Time", "Quantity", "IntOrString") else {}
    if type_ == "Time":
        return timestamp(datetime.fromtimestamp(parts[1], timezone.utc)) if parts.get(1) else None
    if type_ == "Quantity":
        return parts.get(1, b"0").decode()
    if type_ == "IntOrString":
        return parts.get(3, b"").decode() if parts.get(1) else parts.get(2, 0)
    return _message(type_, value)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise bad_request("the protobuf body ends too early")
            yield number, data[at : at + length]
            at += length
        else:
            raise _unreadable(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _unreadable(what: str) -> ApiError:
    # Never dropped in silence: an object would be stored that is not the one that was sent.
    message = f"this double of the API cannot read {what} from protobuf: send JSON (kubectl create -f)"
    return ApiError(415, "UnsupportedMediaType", message)
