"""Messages that docs/troubleshooting.md quotes are in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import airflow_provider_soperator

PROVIDER = Path(airflow_provider_soperator.__file__).parent
PAGE = (PROVIDER.parent / "docs" / "troubleshooting.md").read_text()
#: What is quoted in the first columns of tables. Words of Airflow are introduced as such.
QUOTED = [
    quoted
    for cell in re.findall(r"^\| ([^|]*) \|", PAGE, re.MULTILINE)
    if not cell.startswith("Airflow's")
    for quoted in re.findall(r"`([^`]+)`", cell)
    if " " in quoted
]


@cache
def texts() -> str:
    """All texts of the provider, a line each, with … for what is put in."""
    found = []
    for path in PROVIDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]|\{\}", "…", node.value))
    return "\n".join(text.replace("\n", " ") for text in found)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    pieces = [re.escape(piece) for piece in message.replace("`", "").split("…")]
    assert re.search("[^\n]*?".join(pieces), texts().replace("`", "")), message


def test_there_are_messages() -> None:
    assert len(QUOTED) > 80
