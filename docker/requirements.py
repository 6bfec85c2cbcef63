"""Prints what the provider needs, with the extras that are named, and the sandbox: all but themselves."""

import sys
from pathlib import Path

import tomllib

provider, sandbox = (tomllib.loads(Path(file, "pyproject.toml").read_text())["project"] for file in (".", "sandbox"))
extras = (provider["optional-dependencies"][name] for name in sys.argv[1:])
print(*sum(extras, [*provider["dependencies"], *sandbox["dependencies"]]), sep="\n")
