"""Copies a recipe, with all local modules, into a workspace: from a folder, a git repository or a registry.

``terraform init -from-module`` fails for the published recipe, which uses modules above its own folder
(``../../modules``), because Terraform copies only the folder. For a module of another recipe, Terraform downloads the
whole package, so the recipe is downloaded as a module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_provider_soperator.terraform.failures import RECIPE_MISSING, STATE_ELSEWHERE
from airflow_provider_soperator.terraform.root_module import RootModule, modules_of, reach
from airflow_provider_soperator.terraform.runs import Terraform, write

#: File with the source of a copy, its files, and their digest.
_NOTE = "source.json"
_MODULE = "recipe"
_STATE = "terraform.tfstate"
_LEFT_OUT = re.compile(r"\.git|\.terraform|.*\.tfstate(\..*)?|terraform\.tfstate\.d")
#: After a prefix such as ``git::https://``, two slashes end the package.
_ADDRESS = re.compile(r"(?P<package>(?:\w+::)*(?:\w+://)?.*?)(?://(?P<inner>.*))?", re.DOTALL)
_REGISTRY = re.compile(r"([\w-]+(\.[\w-]+)+/)?[\w-]+/[\w-]+/[\w-]+")
_GIT = re.compile(r"(ssh|https?|file)://.*\.git|ssh://.*")


@dataclass(frozen=True)
class Source:
    """Source of a recipe, as given by the user."""

    address: str
    subfolder: str = ""
    #: A tag, a commit or a branch of a repository; a version of a module in a registry.
    ref: str | None = None

    @property
    def folder(self) -> Path | None:
        """The recipe's folder, if it is on this machine."""
        path = Path(self.address).expanduser()
        return path / self.subfolder if path.is_dir() else None

    def module(self) -> dict[str, str]:
        """The source as an argument of a module block.

        >>> Source("https://example.org/lib.git", "soperator", "v1").module()
        {'source': 'git::https://example.org/lib.git//soperator?ref=v1'}
        >>> Source("acme/cluster/nebius", ref="1.2.0").module()
        {'source': 'acme/cluster/nebius', 'version': '1.2.0'}
        """
        rest, _, query = self.address.partition("?")
        package, inner = _ADDRESS.fullmatch(rest).group("package", "inner")  # type: ignore[union-attr] # all match
        within = "/".join(filter(None, (inner, self.subfolder)))
        registry = _REGISTRY.fullmatch(package) and not package.startswith(("github.com/", "bitbucket.org/"))
        module = {}
        if registry and self.ref:
            module["version"] = self.ref
        elif self.ref:
            query = "&".join(filter(None, (query, f"ref={self.ref}")))
        package = f"git::{package}" if _GIT.fullmatch(package) else package
        return {"source": package + (f"//{within}" if within else "") + (f"?{query}" if query else ""), **module}


def bring(terraform: Terraform, source: Source, into: Path, workspace: str | None = None) -> tuple[Path, str]:
    """Copy the present recipe from its source into a folder; returns the path of its root module, and its digest.

    Other files stay: a local state, installed providers, output of scripts. A recipe with a ``ref`` is copied once.
    """
    note = into / _NOTE
    known = json.loads(note.read_text()) if note.exists() else {}
    folder, module = source.folder, source.module()
    if folder and not folder.is_dir():
        raise RECIPE_MISSING.error(f"{folder} does not exist")
    if folder and source.ref:
        raise RECIPE_MISSING.error(
            f"{folder} is a folder, which has no ref {source.ref!r}",
            "check it out there, or give the repository's address as the source",
        )
    if source.ref and known.get("module") == module:
        return into / str(known["root"]), str(known.get("digest", ""))
    if folder:
        tree = reach(folder)
        root = os.path.relpath(folder.absolute(), tree)
        _refuse_to_forget(folder, into / root, workspace)
        # The tree may contain workspaces, including this one.
        files = _mirror(tree, root, into, known.get("files", []), but=into.parent.parent)
    else:
        with TemporaryDirectory(dir=into.parent, prefix=".bringing-") as staging:
            tree, root = _download(terraform, source, Path(staging))
            files = _mirror(tree, root, into, known.get("files", []))
    digest = _digest(into, root, files)
    write(note, {"module": module, "root": root, "files": files, "digest": digest})
    return into / root, digest


def _digest(into: Path, root: str, files: list[str]) -> str:
    """The digest of all files of the modules, with values and templates, but not of other recipes beside them."""
    modules, digest = modules_of(into / root), sha256()
    for path in (into / name for name in files):
        if path.is_file() and any(one in modules for one in path.parents):
            digest.update(f"{path.relative_to(into)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _download(terraform: Terraform, source: Source, staging: Path) -> tuple[Path, str]:
    (staging / "main.tf.json").write_text(json.dumps({"module": {_MODULE: source.module()}}))
    terraform.run("get", "-no-color", cwd=staging)
    modules = staging / ".terraform/modules"
    listed = json.loads((modules / "modules.json").read_text())["Modules"]
    root = next(staging / one["Dir"] for one in listed if one["Key"] == _MODULE)
    if not root.is_relative_to(modules / _MODULE):
        raise RECIPE_MISSING.error(f"{source.address} is not a separate package")
    return modules / _MODULE, os.path.relpath(root, modules / _MODULE)


def _refuse_to_forget(folder: Path, root: Path, workspace: str | None) -> None:
    """Raise if a local state of the recipe's folder has a cluster that is not in the one that is used here."""
    used = _STATE if workspace in (None, "default") else f"{_STATE}.d/{workspace}/{_STATE}"
    for state in {folder / _STATE, folder / used} if not (root / used).exists() else ():
        has_cluster = state.exists() and json.loads(state.read_text()).get("resources")
        if has_cluster and RootModule.read(folder).backend == "local":
            raise STATE_ELSEWHERE.error(
                f"{state} contains a cluster, which a copy of the recipe would create a second time",
                f"give the recipe a shared backend, or copy the state to {root / used} and use it only there",
            )


def _mirror(tree: Path, root: str, into: Path, earlier: list[str], but: Path | None = None) -> list[str]:
    """Copy a tree with a recipe over an earlier copy, and return its files."""
    RootModule.read(tree / root)
    files = sorted(_files(tree, but))
    # If the Airflow worker dies before the copy is complete, it is of no source.
    into.mkdir(parents=True, exist_ok=True)
    write(into / _NOTE, {"files": sorted({*earlier, *files})})
    for name in set(earlier) - set(files):
        (into / name).unlink(missing_ok=True)
    for name in files:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(tree / name, target, follow_symlinks=False)
    return files


def _files(tree: Path, but: Path | None) -> Iterator[str]:
    for folder, names, files in os.walk(tree):
        names[:] = [name for name in names if not _LEFT_OUT.fullmatch(name) and Path(folder, name) != but]
        for name in files:
            if not _LEFT_OUT.fullmatch(name):
                yield os.path.relpath(os.path.join(folder, name), tree)
