"""What a recipe's files declare: blocks, their labels, and attributes that are plain texts.

Terraform tells this only of a recipe that is initialized, for which it may need credentials and a registry. Expressions
are not evaluated: what is read is which variables there are, which backend, and which modules are beside the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.terraform.errors import NoReader

#: The blocks that matter, by where they are, and whether they have a label.
_IN_FILE = {"variable": True, "module": True, "terraform": False}
_IN_TERRAFORM = {"backend": True, "cloud": False}


class Unreadable(ValueError):
    """A file with mistakes, or newer than what reads it here; Terraform itself says what is wrong with it."""


@dataclass
class Block:
    """Such as ``variable "region" { … }``."""

    type: str
    labels: tuple[str, ...] = ()
    blocks: list[Block] = field(default_factory=list)
    #: By name; ``None`` where the value is not a plain text.
    attributes: dict[str, str | None] = field(default_factory=dict)

    def of_type(self, *types: str) -> Iterator[Block]:
        """The blocks directly within this one that are of a type."""
        return (block for block in self.blocks if block.type in types)


def read(text: str) -> Block:
    """What a ``.tf`` file declares."""
    try:
        import hcl2
        from lark.exceptions import LarkError
    except ImportError as error:
        raise NoReader(f"the packages for terraform are not installed ({error})") from error
    options = hcl2.SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
    try:
        return _file(hcl2.loads(text + "\n", serialization_options=options))
    except LarkError as error:
        raise Unreadable(str(error)) from error


def read_json(text: str) -> Block:
    """What a ``.tf.json`` file declares."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return _file(document if isinstance(document, Mapping) else {})


def _file(document: Mapping[str, Any]) -> Block:
    file = Block("file")
    _add(file, document, _IN_FILE)
    return file


def _add(parent: Block, document: Mapping[str, Any], labelled: Mapping[str, bool]) -> None:
    for name, value in document.items():
        if name not in labelled:
            parent.attributes[name] = value if isinstance(value, str) and "${" not in value else None
            continue
        for body in _each(value):
            named = body.items() if labelled[name] else [("", body)]
            for label, contents in named:
                for content in _each(contents):
                    block = Block(name, (label,) if label else ())
                    parent.blocks.append(block)
                    _add(block, content, _IN_TERRAFORM if name == "terraform" else {})


def _each(value: Any) -> Iterator[Mapping[str, Any]]:
    """There is a block, or a list of blocks."""
    return (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping))
