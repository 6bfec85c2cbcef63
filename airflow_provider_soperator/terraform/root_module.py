"""Root module of a recipe, read before Terraform runs: its variables, its backend and its local modules.

Terraform shows these only after ``init``, which may need credentials and a registry. Expressions are not evaluated:
only blocks, their labels, and attributes that are plain strings are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_soperator.errors import nearest
from airflow_provider_soperator.terraform.failures import NO_READER, NOT_A_RECIPE, UNKNOWN_VARIABLE
from airflow_provider_soperator.values import texts_in

#: What is to be replaced in an example's values, such as "computefilesystem-<YOUR-FILESTORE-ID>".
_PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9 _-]*>")
_ENDS = (".tf", ".tf.json")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w-]+|\S')
_READ = re.compile(r"\.(tf(\.json)?$|sh)")
_COMMENT = re.compile(r"^[ \t]*(?:#|//).*$", re.MULTILINE)
_MODULE = re.compile(r'\bsource"?\s*[=:]\s*"(\.{1,2}/[^"]*)"')
#: A script, by its path after a variable for some folder.
_SCRIPT = re.compile(r"(?:\$\{?[\w.]+\}?/)?([\w./-]+\.sh(?:\.\w+)?)\b")


@dataclass(frozen=True)
class RootModule:
    """A folder with ``.tf`` files."""

    folder: Path
    #: The contents of the files that could be parsed.
    files: tuple[Mapping[str, Any], ...] = field(repr=False)
    is_complete: bool = True

    @classmethod
    def read(cls, folder: Path) -> RootModule:
        """The recipe in a folder; ``TerraformError`` if there is none."""
        if not folder.is_dir():
            raise NOT_A_RECIPE.error(f"there is no folder {folder}")
        # Terraform reads overriding files last.
        paths = sorted(folder.glob("*.tf"), key=_is_override) + sorted(folder.glob("*.tf.json"), key=_is_override)
        if not paths:
            raise NOT_A_RECIPE.error(f"{folder} has no .tf files")
        files = [_read(path) for path in paths]
        return cls(folder, tuple(one for one in files if one is not None), is_complete=None not in files)

    def blocks(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The label and the attributes of each block of a kind."""
        return (found for file in self.files for found in _labelled(file, kind))

    @cached_property
    def variables(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.blocks("variable"))

    @property
    def backend(self) -> str:
        """The type of the backend; ``local`` if none is declared."""
        return self._backend[0]

    @property
    def backend_settings(self) -> Mapping[str, Any]:
        return self._backend[1]

    @property
    def is_locked(self) -> bool:
        """True if the backend locks the state: all do, but s3 only if configured."""
        locks = (self.backend_settings.get(name) for name in ("use_lockfile", "dynamodb_table"))
        return self.backend != "s3" or any(one not in (None, False, "") for one in locks)

    @property
    def is_without_bucket(self) -> bool:
        """True if the state stays local, though the recipe's ``.envrc`` would put it into a bucket."""
        envrc = self.folder / ".envrc"
        return self.backend == "local" and envrc.is_file() and "backend_override" in envrc.read_text()

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of each variable's type, each with its own; None for a type without any, or with any name."""
        said = {name: _fields(str(one["type"])) for name, one in self.blocks("variable") if "type" in one}
        return {**dict.fromkeys(self.variables), **said}

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise ``TerraformError`` for undeclared variables and fields.

        Terraform would ignore some variables with a warning, and all fields without one.
        """
        unknown = [name for name in given if name not in self.variables] if self.is_complete else []
        if unknown and not self.variables:
            raise NOT_A_RECIPE.error(f"{self.folder} declares no variables, so {', '.join(unknown)} cannot be set")
        lost = (one for name, value in given.items() for one in _lost(value, self.fields.get(name), name))
        for kind, near in (("variable", {one: nearest(one, self.variables) for one in unknown}), ("field", dict(lost))):
            if told := [f"{name} (did you mean {known!r}?)" if known else name for name, known in near.items()]:
                raise UNKNOWN_VARIABLE.error(
                    f"the recipe has no {kind} {', '.join(told)}",
                    "correct the name, see its variables.tf, or use a version of the recipe that has it",
                )

    def placeholders(self, given: Iterable[str]) -> Iterator[str]:
        """The recipe's own values that were not filled in, of variables that are not ``given``."""
        for file, values in self._value_files.items():
            for name, value in (values or {}).items():
                left = next(filter(_PLACEHOLDER.search, texts_in(value)), None)
                if left and name not in given:
                    where = "set it in the description of the cluster, or in that file"
                    yield f"{file} of the recipe has a placeholder for {name}: {left!r}: {where}"

    def unset(self, given: Iterable[str]) -> list[str]:
        """The variables that must have a value and have none, as far as all files could be parsed."""
        if None in self._value_files.values():
            return []
        # An override file may have the default.
        optional = {name for name, attributes in self.blocks("variable") if "default" in attributes}
        return [name for name in dict.fromkeys(self.variables) if name not in {*given, *self.own_values, *optional}]

    @property
    def own_values(self) -> Mapping[str, Any]:
        """The values of variables in files that Terraform reads by itself."""
        return {name: value for values in self._value_files.values() for name, value in (values or {}).items()}

    @cached_property
    def _value_files(self) -> Mapping[str, Mapping[str, Any] | None]:
        ends = ("terraform.tfvars", "terraform.tfvars.json", "*.auto.tfvars", "*.auto.tfvars.json")
        return {path.name: _read(path) for end in ends for path in sorted(self.folder.glob(end))}

    @cached_property
    def _backend(self) -> tuple[str, Mapping[str, Any]]:
        declared: list[tuple[str, Mapping[str, Any]]] = [("local", {})]
        for block in (block for file in self.files for block in _each(file.get("terraform"))):
            declared += _labelled(block, "backend")
            declared += [("cloud", settings) for settings in _each(block.get("cloud"))]
        return declared[-1]


def texts_of(folder: Path) -> dict[Path, str]:
    """The files of a recipe, its local modules, also indirect ones, and their scripts, without comments.

    As text, because a reader of Terraform's language takes long.
    """
    read: dict[Path, str] = {}
    ends = [folder.absolute()]
    while ends:
        path = Path(os.path.normpath(ends.pop()))
        if path.is_dir():
            ends += (one for end in ("*.tf", "*.tf.json") for one in path.glob(end) if one not in read)
        elif path not in read and _READ.search(path.name) and path.is_file():
            read[path] = _COMMENT.sub("", path.read_text(errors="replace"))
            ends += (path.parent / one for one in _MODULE.findall(read[path]))
            scripts = [one.lstrip("/") for one in _SCRIPT.findall(read[path])]
            ends += (folder / one for folder in (path.parent, path.parent.parent) for one in scripts)
    return read


def modules_of(folder: Path) -> set[Path]:
    """The folders of a recipe and of all its local modules, also indirect ones."""
    return {path.parent for path in texts_of(folder) if path.name.endswith(_ENDS)}


def reach(folder: Path) -> Path:
    """The smallest folder that contains all these."""
    return Path(os.path.commonpath([os.path.normpath(folder.absolute()), *modules_of(folder)]))


def _read(path: Path) -> Mapping[str, Any] | None:
    """The contents of a file; None if it cannot be parsed here: Terraform itself reports any error in it."""
    try:
        import hcl2
        from lark.exceptions import LarkError
    except ImportError as error:
        raise NO_READER.error(f"the packages for terraform are not installed ({error})") from error
    text = path.read_text(errors="replace")
    options = hcl2.SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
    try:
        read = json.loads(text) if path.suffix == ".json" else hcl2.loads(f"{text}\n", serialization_options=options)
    except (ValueError, LarkError):
        return None
    return read if isinstance(read, Mapping) else {}


def _fields(said: str) -> Any:
    """The fields of a type, as those of an object that may be in lists.

    >>> _fields("list(object({a = optional(object({b = string}), {c = 1}), d = map(object({e = any}))}))")
    {'a': {'b': None}, 'd': None}
    """
    found: dict[str, Any] = {"": None}
    # The object in which a field is, the field, and those around it.
    into, name, outer, before = found, "", list[tuple[dict[str, Any], str]](), ["", ""]
    for token in _TOKEN.findall(said[2:-1] if said.startswith("${") else said):
        if token == "=":
            name = before[-1].strip('"')
            into[name] = None
        elif token in ("(", "{", "["):
            outer.append((into, name))
            if token == "{" and before == ["object", "("]:
                into[name] = {}
                into = into[name]
            elif token != "(" or before[-1] == "map":
                # A default, or a type of which each name is a field.
                into = {}
        elif token in (")", "}", "]") and outer:
            into, name = outer.pop()
        before = [before[-1], token]
    return found[""]


def _lost(value: Any, fields: Mapping[str, Any] | None, where: str) -> Iterator[tuple[str, str]]:
    """The fields of a value that its type does not have, each with the name that is most like it."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _lost(one, fields, where)
    elif isinstance(value, Mapping) and fields is not None:
        for name, one in value.items():
            if name in fields:
                yield from _lost(one, fields[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}", nearest(name, fields)


def _is_override(path: Path) -> bool:
    stem = path.name.partition(".")[0]
    return stem == "override" or stem.endswith("_override")


def _labelled(document: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for block in _each(document.get(kind)):
        for label, contents in block.items():
            for attributes in _each(contents):
                yield label, attributes


def _each(value: Any) -> Iterator[Mapping[str, Any]]:
    """One block, or each block of a list."""
    return (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping))
