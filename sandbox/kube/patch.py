"""The three ways of the Kubernetes API to say a change: JSON, merge and strategic merge. Apply is in managers.py."""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from sandbox.kube.errors import ApiError, bad_request, unsupported_media_type
from sandbox.kube.fields import MERGE_KEYS
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object, clone

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

#: Lists of plain values that a strategic merge adds to.
_MERGED_VALUES = {"finalizers"}


def apply_patch(kind: Kind, old: Object, content_type: str, patch: Any) -> Object:
    """The object that a patch of this content type makes of ``old``."""
    accepted = (JSON, MERGE, APPLY) if kind.custom else (JSON, MERGE, STRATEGIC, APPLY)
    if content_type not in accepted or content_type == APPLY:
        # An apply is answered elsewhere wherever it is possible.
        raise unsupported_media_type(accepted)
    if content_type == JSON:
        return json_patch(old, patch)
    if not isinstance(patch, dict):
        raise bad_request("a patch of this type is an object")
    if content_type == MERGE:
        return merge(old, patch)
    return strategic(old, patch)


def merge(old: Any, patch: Object) -> Object:
    """JSON merge patch (RFC 7386): null removes, objects are merged, all else replaces."""
    result: Object = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(result.get(key), value)
        else:
            result[key] = clone(value)
    return result


def json_patch(old: Object, operations: Any) -> Object:
    """JSON patch (RFC 6902)."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    try:
        result: Any = jsonpatch.JsonPatch(operations).apply(old)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as problem:
        # What cannot be carried out is the object's state, not the request's form: 422 as in the API server.
        raise ApiError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {problem}"
        ) from None
    if not isinstance(result, dict):
        raise bad_request("the patch does not leave an object")
    return result


def strategic(old: Any, patch: Object) -> Object:
    """Strategic merge patch: a merge patch that joins the well-known lists by key, with its directives."""
    if patch.get("$patch") == "replace":
        return {key: clone(value) for key, value in patch.items() if key != "$patch"}
    result: Object = dict(old) if isinstance(old, dict) else {}
    if patch.get("$patch") == "delete":
        return {}
    retained = patch.get("$retainKeys")
    if retained is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            if value.get("$patch") == "delete":
                result.pop(key, None)
            else:
                result[key] = strategic(result.get(key), value)
        elif isinstance(value, list):
            result[key] = _strategic_list(key, result.get(key) or [], value)
        else:
            result[key] = value
    return result


def _strategic_list(field: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if field in _MERGED_VALUES:
        return old + [value for value in patch if value not in old]
    keys = MERGE_KEYS.get(field, ())
    items = [item for item in patch if isinstance(item, dict)]
    if len(items) != len(patch) or not all(isinstance(item, dict) for item in old):
        return list(clone(patch))
    if any(item.get("$patch") == "replace" for item in items):
        return [clone(item) for item in items if "$patch" not in item]
    key = next((key for key in keys if all(key in item for item in items)), None)
    if key is None:
        return list(clone(patch))
    result = list(old)
    for item in items:
        at = next((i for i, known in enumerate(result) if known.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic({}, item))
        else:
            result[at] = strategic(result[at], item)
    return result
