"""Which test modules a change touches: those that import what has changed, directly or through others."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Where the modules are; what else there is has no tests that import it.
FOLDERS = ("airflow_provider_soperator", "benchmarks", "sandbox", "tests")
#: DAGs and programs that tests write are text in them.
IN_TEXT = re.compile(r"^\s*(?:from|import) +([\w.]+)", re.MULTILINE)


def changed(root: Path, since: str | None) -> tuple[str, list[str]]:
    """The commit with which the working tree is compared, and the files that differ; new ones are among them."""

    def git(*words: str) -> list[str]:
        said = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        if said.returncode:
            raise ValueError(f"git {' '.join(words)}: {said.stderr.strip()}")
        return said.stdout.splitlines()

    if since is None:
        try:
            [since] = git("merge-base", "HEAD", "@{upstream}")
        except ValueError:
            since = "HEAD~1"
    [commit] = git("rev-parse", "--short", "--verify", f"{since}^{{commit}}")
    files = git("diff", "--name-only", "--no-renames", commit) + git("ls-files", "--others", "--exclude-standard")
    return commit, sorted(set(files))


def touched(root: Path, files: Iterable[str]) -> dict[str, int]:
    """Test modules by how many imports they are away from the nearest of these files, the nearest first."""
    starts = {file for file in files if file.endswith(".py")}
    known = {_module(file): file for file in starts}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            file = path.relative_to(root).as_posix()
            known[_module(file)] = file
    importers: dict[str, set[str]] = {}
    for file in known.values():
        for imported in _imports(root, file, known):
            importers.setdefault(imported, set()).add(file)
    distances = dict.fromkeys(sorted(starts), 0)
    # As it grows at its end while it is gone through, those at one distance come before those at the next.
    queue = list(distances)
    for file in queue:
        for importer in sorted(importers.get(file, ())):
            if importer not in distances:
                distances[importer] = distances[file] + 1
                queue.append(importer)
    return {file: distances[file] for file in queue if _is_test(file) and (root / file).exists()}


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and file.rpartition("/")[2].startswith("test_")


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(root: Path, file: str, known: dict[str, str]) -> set[str]:
    """Files that a file imports; that it makes their packages, too, would have each depend on all."""
    if not (root / file).exists():
        return set()
    found = {known[name] for name in _names(ast.parse((root / file).read_text()), known) if name in known}
    if _is_test(file):
        # Pytest gives it these.
        conftests = (f"{folder.as_posix()}/conftest.py" for folder in Path(file).parents)
        found.update(one for one in conftests if (root / one).exists())
    return found - {file}


def _names(tree: ast.AST, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A name alone is that of a plugin, or of a module for ``-m``.
            yield from (node.value, *IN_TEXT.findall(node.value))
