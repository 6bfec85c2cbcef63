"""A reader of what a recipe's files declare: blocks, their labels, and attributes that are plain texts.

Terraform tells this only of a recipe that is initialized, for which it may need credentials and a registry. Expressions
are not evaluated: what is read is which variables there are, which backend, and which modules are beside the recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+)
  | (?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)
  | (?P<line>\n)
  | <<-?(?P<heredoc>[A-Za-z_][\w-]*)[ \t\r]*\n
  | (?P<word>[A-Za-z_][\w-]*)
  | (?P<quote>")
  | (?P<open>[{(\[])
  | (?P<close>[})\]])
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


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


@dataclass(frozen=True)
class _Token:
    kind: str
    #: Of a text, what it says; ``None`` if that has to be evaluated.
    text: str | None


def read(text: str) -> Block:
    """What a ``.tf`` file declares. A file with mistakes is read as far as it goes: Terraform says what is wrong."""
    tokens = _tokens(text)
    return _body(Block("file"), tokens)


def read_json(text: str) -> Block:
    """What a ``.tf.json`` file declares."""
    file = Block("file")
    try:
        document = json.loads(text)
    except ValueError:
        return file
    if isinstance(document, Mapping):
        _add(file, document, {"variable": 1, "module": 1, "terraform": 0})
    return file


def _add(parent: Block, document: Mapping[str, Any], labelled: Mapping[str, int]) -> None:
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
                    _add(block, content, {"backend": 1, "cloud": 0} if name == "terraform" else {})


def _each(value: Any) -> Iterator[Mapping[str, Any]]:
    """JSON may have a block, or a list of blocks."""
    return (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping))


def _body(block: Block, tokens: Iterator[_Token]) -> Block:
    """Fill a block up to its closing brace."""
    statement: list[_Token] = []
    for token in tokens:
        if token.kind == "close":
            return block
        if token.kind == "line":
            statement = []
        elif token.kind == "open" and token.text == "{" and statement:
            labels = tuple(label.text or "" for label in statement[1:])
            block.blocks.append(_body(Block(statement[0].text or "", labels), tokens))
            statement = []
        elif token.kind == "sign" and token.text == "=" and len(statement) == 1:
            is_last = _value(block, statement[0].text or "", tokens)
            statement = []
            if is_last:
                return block
        else:
            statement.append(token)
    return block


def _value(block: Block, name: str, tokens: Iterator[_Token]) -> bool:
    """Read an attribute's value to the end of its line; whether the block has ended on it."""
    depth = 0
    value: list[_Token] = []
    for token in tokens:
        if token.kind == "close" and not depth:
            block.attributes[name] = _text_of(value)
            return True
        if token.kind == "line" and not depth:
            break
        depth += (token.kind == "open") - (token.kind == "close")
        value.append(token)
    block.attributes[name] = _text_of(value)
    return False


def _text_of(value: list[_Token]) -> str | None:
    return value[0].text if len(value) == 1 and value[0].kind == "text" else None


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while found := _TOKEN.match(text, at):
        kind, at = str(found.lastgroup), found.end()
        if kind == "quote":
            said, at = _quoted(text, at)
            yield _Token("text", said)
        elif kind == "heredoc":
            end = re.compile(rf"^[ \t]*{re.escape(found['heredoc'])}[ \t\r]*$", re.MULTILINE).search(text, at)
            at = end.end() if end else len(text)
            yield _Token("text", None)
        elif kind not in ("space", "comment"):
            yield _Token(kind, found[0])


def _quoted(text: str, at: int) -> tuple[str | None, int]:
    """The text that begins after a quote, and where it ends. A template in it may have texts of its own."""
    begin, is_template = at, False
    while at < len(text):
        if text.startswith(("$${", "%%{"), at):
            at += 3
        elif text.startswith(("${", "%{"), at):
            is_template, at = True, _template_end(text, at + 2)
        elif text[at] == "\\":
            at += 2
        elif text[at] == '"':
            said = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), text[begin:at])
            return (None if is_template else said.replace("$${", "${").replace("%%{", "%{")), at + 1
        else:
            at += 1
    return None, at


def _template_end(text: str, at: int) -> int:
    depth = 1
    while depth and at < len(text):
        if text[at] == '"':
            at = _quoted(text, at + 1)[1]
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    return at
