"""Root module of a recipe, read before Terraform runs: its variables, its backend and the modules beside it.

Terraform tells this only of a recipe that is initialized, for which it may need credentials and a registry. Expressions
are not evaluated: blocks, their labels, and attributes that are plain texts are read.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.failures import NoReader, NotARecipe, UnknownVariable

#: The blocks that matter, by where they are, and whether they have a label.
_IN_FILE = {"variable": True, "module": True, "terraform": False}
_IN_TERRAFORM = {"backend": True, "cloud": False}


@dataclass(frozen=True)
class Variable:
    """A variable of a recipe."""

    name: str
    #: Whether the recipe does without a value.
    has_default: bool


@dataclass(frozen=True)
class RootModule:
    """A folder with ``.tf`` files, as it is."""

    folder: Path
    #: Those that could be read.
    files: tuple[Block, ...] = field(repr=False)
    is_complete: bool = True

    @classmethod
    def read(cls, folder: Path) -> RootModule:
        """A folder's recipe; ``NotARecipe`` if it has none."""
        if not folder.is_dir():
            raise NotARecipe(f"there is no folder {folder}")
        # Terraform reads overriding files last.
        paths = sorted(folder.glob("*.tf"), key=_is_override) + sorted(folder.glob("*.tf.json"), key=_is_override)
        if not paths:
            raise NotARecipe(f"{folder} has no .tf files")
        files = [_read(path) for path in paths]
        return cls(folder, tuple(filter(None, files)), is_complete=None not in files)

    @cached_property
    def variables(self) -> Mapping[str, Variable]:
        """By name."""
        return {
            block.labels[0]: Variable(block.labels[0], has_default="default" in block.attributes)
            for block in self._blocks("variable")
            if block.labels
        }

    @cached_property
    def backend(self) -> str:
        """The type of the backend, ``local`` if none is declared."""
        declared = self._backend
        return "".join(declared.labels) or declared.type if declared else "local"

    @property
    def is_locked(self) -> bool:
        """True if the backend has a lock against two changes at a time: all do, but s3 has to be configured for it."""
        asked = self._backend.attributes.keys() if self._backend else ()
        return self.backend != "s3" or bool({"use_lockfile", "dynamodb_table"} & set(asked))

    @cached_property
    def modules(self) -> tuple[Path, ...]:
        """The folders of modules that are named by a path."""
        sources = [block.attributes.get("source") or "" for block in self._blocks("module")]
        return tuple(_joined(self.folder, source) for source in sources if source.startswith(("./", "../")))

    def check(self, given: Iterable[str]) -> None:
        """Refuse values for variables that are not declared: Terraform would warn of some, and take no notice."""
        unknown = [name for name in given if name not in self.variables]
        if not unknown or not self.is_complete:
            return
        if not self.variables:
            raise NotARecipe(f"{self.folder} declares no variables, so {', '.join(unknown)} cannot be given")
        told = []
        for name in unknown:
            near = difflib.get_close_matches(name, self.variables, 1)
            told.append(f"{name} (is it {near[0]}?)" if near else name)
        raise UnknownVariable(
            f"the recipe has no variable {', '.join(told)}",
            "see its variables.tf for the right name, or take a version of the recipe that has it",
        )

    @cached_property
    def _backend(self) -> Block | None:
        declared = [one for block in self._blocks("terraform") for one in block.of_type("backend", "cloud")]
        return declared[-1] if declared else None

    def _blocks(self, kind: str) -> Iterator[Block]:
        return (block for file in self.files for block in file.of_type(kind))


def reach(folder: Path) -> Path:
    """The smallest folder that has a recipe and all modules which it, or one of them, names by a path."""
    seen: set[Path] = set()
    open_ends = [_joined(folder.absolute(), ".")]
    while open_ends:
        one = open_ends.pop()
        if one not in seen and one.is_dir():
            seen.add(one)
            if any(one.glob("*.tf")) or any(one.glob("*.tf.json")):
                open_ends.extend(RootModule.read(one).modules)
    return Path(os.path.commonpath(seen))


def _joined(folder: Path, path: str) -> Path:
    return Path(os.path.normpath(folder / path))


def _read(path: Path) -> Block | None:
    text = path.read_text(errors="replace")
    try:
        return read_json(text) if path.suffix == ".json" else read(text)
    except Unreadable:
        # Terraform will say why.
        return None


def _is_override(path: Path) -> bool:
    stem = path.name.partition(".")[0]
    return stem == "override" or stem.endswith("_override")


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
    """Declarations of a ``.tf`` file."""
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
    """Declarations of a ``.tf.json`` file."""
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
