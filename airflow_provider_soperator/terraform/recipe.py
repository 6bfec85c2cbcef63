"""What a root module declares, read before Terraform runs: its variables, its backend and the modules beside it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from airflow_provider_soperator.terraform.blocks import Block, Unreadable, read, read_json
from airflow_provider_soperator.terraform.errors import NotARecipe, UnknownVariable


@dataclass(frozen=True)
class Variable:
    """A variable of a recipe."""

    name: str
    #: Whether the recipe does without a value.
    has_default: bool


@dataclass(frozen=True)
class Recipe:
    """A folder with ``.tf`` files, as it is."""

    folder: Path
    #: Those that could be read.
    files: tuple[Block, ...] = field(repr=False)
    is_complete: bool = True

    @classmethod
    def read(cls, folder: Path) -> Recipe:
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
        """Whether the backend keeps two from changing the state at a time, as all do but one that is to be told."""
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
                open_ends.extend(Recipe.read(one).modules)
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
