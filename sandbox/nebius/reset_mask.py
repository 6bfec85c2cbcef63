"""How an Update changes a resource: what the payload carries is set, what ``X-ResetMask`` adds is reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from nebius.base.fieldmask import FieldKey, Mask
from nebius.base.protos.direct import Field, Message

M = TypeVar("M", bound=Message)


def merged(current: M, incoming: M, mask: Mask) -> M:
    """The resource after the update; neither argument is changed.

    A field counts as carried if it is not its default, or is one whose presence can be told: a oneof member
    or a message. A message that the payload lacks is reset as a whole as soon as the mask names it *or
    anything in it*: that is what makes an update with an incomplete payload destroy the rest.
    """
    result = type(current)(current)
    for field in result.__FIELDS__:
        part = _part(mask, field.proto_name)
        if _carried(incoming, field):
            value = getattr(incoming, field.python_name)
            setattr(result, field.python_name, _value(getattr(result, field.python_name), value, part))
        elif part is not None:
            result.ClearField(field.proto_name)
    return result


def _carried(message: Message, field: Field) -> bool:
    if field.has_presence and not field.repeated:
        return message.HasField(field.proto_name)
    return not message.is_default(field.python_name)


def _value(current: Any, incoming: Any, part: Mask | None) -> Any:
    """Lists and maps get the length and the keys of the payload; what stays in them is merged one by one."""
    if isinstance(incoming, Message):
        return merged(current if current is not None else type(incoming)(), incoming, part or Mask())
    if isinstance(incoming, Mapping):
        return {
            key: _value(current[key], value, _part(part, str(key))) if key in current else value
            for key, value in incoming.items()
        }
    if isinstance(incoming, Sequence) and not isinstance(incoming, str | bytes):
        return [
            _value(current[index], value, _part(part, str(index))) if index < len(current) else value
            for index, value in enumerate(incoming)
        ]
    return incoming


def _part(mask: Mask | None, name: str) -> Mask | None:
    """The mask one level down; an empty one still means that the field was named."""
    if mask is None:
        return None
    named = mask.field_parts.get(FieldKey(name))
    if named is not None and mask.any is not None:
        return named + mask.any
    return named if named is not None else mask.any
