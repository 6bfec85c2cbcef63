"""Files that others may read at any moment."""

from __future__ import annotations

from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Write a file as a whole: whoever reads it meanwhile finds the old text, or the new one."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text)
    partial.replace(file)
