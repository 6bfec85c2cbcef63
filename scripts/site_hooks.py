"""What MkDocs needs beside docs/: files of the repository that pages link to become pages of the site.

The pages stay plain Markdown with links that work on GitHub, such as ``../dags/sweep.py`` or ``../CHANGELOG.md``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Fenced and inline code, which has no links; else a link with its text and target.
TOKEN = re.compile(
    r"^```.*?^```|`[^`\n]+`|(?P<text>\[[^\[\]]*\])\((?P<path>[^()#\s:]+)(?P<anchor>#[^()\s]*)?\)", re.M | re.S
)
LANGUAGES = {".py": "python", ".sbatch": "bash", ".sh": "bash", ".yaml": "yaml"}


def in_repository(page: str, path: str) -> str:
    """The file to which a link leads, relative to the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def in_site(file: str) -> str:
    """The source in the site of a file of the repository."""
    if file == "README.md" or file.startswith("docs/"):
        return file.removeprefix("docs/")
    return file if file.endswith(".md") else f"{file}.md"


def linked(page: str) -> Iterator[str]:
    """The files outside docs/ to which a page links, and those to which these link."""
    for token in TOKEN.finditer((ROOT / page).read_text()):
        file = in_repository(page, token["path"]) if token["path"] else ""
        if file and file != "README.md" and not file.startswith(("docs/", "..")) and (ROOT / file).is_file():
            yield file


def content(file: str) -> str:
    text = (ROOT / file).read_text()
    if file.endswith(".md"):
        return text
    fence = "`" * 4
    return f"# {file}\n\n{fence}{LANGUAGES.get(Path(file).suffix, '')}\n{text.rstrip()}\n{fence}\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.edit_uri = "edit/main/docs/" if config.repo_url else None
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for page in pages:
        for file in linked(page):
            if files.get_file_from_path(in_site(file)) is None:
                files.append(File.generated(config, in_site(file), content=content(file)))
                if file.endswith(".md"):
                    pages.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    source = here if page.file.generated_by else f"docs/{here}"

    def rewritten(token: re.Match[str]) -> Any:
        if not token["path"]:
            return token[0]
        file = in_repository(source, token["path"])
        if (ROOT / file).is_dir():  # GitHub lists it
            return token["text"][1:-1]
        target = posixpath.relpath(in_site(file), posixpath.dirname(here) or ".")
        return f"{token['text']}({target}{token['anchor'] or ''})"

    return TOKEN.sub(rewritten, markdown)
