"""Root module of a recipe, read before Terraform runs: its variables, its backend and its local modules.

Terraform shows these only after ``init``, which may need credentials and a registry. Expressions are not evaluated:
only blocks, their labels, and attributes that are plain strings are read.
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

#: The blocks to read, by their place, and if they have a label.
_IN_FILE = {"variable": True, "module": True, "terraform": False}
_IN_TERRAFORM = {"backend": True, "cloud": False}


@dataclass(frozen=True)
class Variable:
    """A variable of a recipe."""

    name: str
    #: A value is optional.
    has_default: bool


@dataclass(frozen=True)
class RootModule:
    """A folder with ``.tf`` files."""

    folder: Path
    #: The files that could be parsed.
    files: tuple[Block, ...] = field(repr=False)
    is_complete: bool = True

    @classmethod
    def read(cls, folder: Path) -> RootModule:
        """The recipe in a folder; ``NotARecipe`` if there is none."""
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
        """Variables by name."""
        return {
            block.labels[0]: Variable(block.labels[0], has_default="default" in block.attributes)
            for block in self._blocks("variable")
            if block.labels
        }

    @cached_property
    def backend(self) -> str:
        """The type of the backend; ``local`` if none is declared."""
        declared = self._backend
        return "".join(declared.labels) or declared.type if declared else "local"

    @property
    def is_locked(self) -> bool:
        """True if the backend locks the state: all do, but s3 only if configured."""
        asked = self._backend.attributes.keys() if self._backend else ()
        return self.backend != "s3" or bool({"use_lockfile", "dynamodb_table"} & set(asked))

    @cached_property
    def modules(self) -> tuple[Path, ...]:
        """The folders of modules with a local path."""
        sources = [block.attributes.get("source") or "" for block in self._blocks("module")]
        return tuple(_joined(self.folder, source) for source in sources if source.startswith(("./", "../")))

    def check(self, given: Iterable[str]) -> None:
        """Raise ``UnknownVariable`` for undeclared variables: Terraform would ignore some of them with a warning."""
        unknown = [name for name in given if name not in self.variables]
        if not unknown or not self.is_complete:
            return
        if not self.variables:
            raise NotARecipe(f"{self.folder} declares no variables, so {', '.join(unknown)} cannot be set")
        told = []
        for name in unknown:
            near = difflib.get_close_matches(name, self.variables, 1)
            told.append(f"{name} (did you mean {near[0]}?)" if near else name)
        raise UnknownVariable(
            f"the recipe has no variable {', '.join(told)}",
            "correct the name, see its variables.tf, or use a version of the recipe that has it",
        )

    @cached_property
    def _backend(self) -> Block | None:
        declared = [one for block in self._blocks("terraform") for one in block.of_type("backend", "cloud")]
        return declared[-1] if declared else None

    def _blocks(self, kind: str) -> Iterator[Block]:
        return (block for file in self.files for block in file.of_type(kind))


def reach(folder: Path) -> Path:
    """The smallest folder that contains a recipe and all its local modules, also indirect ones."""
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
        # Terraform will report the error.
        return None


def _is_override(path: Path) -> bool:
    stem = path.name.partition(".")[0]
    return stem == "override" or stem.endswith("_override")


class Unreadable(ValueError):
    """A file that the parser here rejects; Terraform itself reports any error in it."""


@dataclass
class Block:
    """A block, such as ``variable "region" { … }``."""

    type: str
    labels: tuple[str, ...] = ()
    blocks: list[Block] = field(default_factory=list)
    #: Attributes by name; ``None`` if the value is not a plain string.
    attributes: dict[str, str | None] = field(default_factory=dict)

    def of_type(self, *types: str) -> Iterator[Block]:
        """The direct child blocks of these types."""
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
    """One block, or each block of a list."""
    return (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping))
