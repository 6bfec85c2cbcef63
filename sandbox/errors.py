"""What goes wrong for a user of the sandbox: always one line that says what, and what to do about it."""

from __future__ import annotations

#: The way without root or Debian.
DOCKER = "`docker compose up sandbox`"


class SandboxError(Exception):
    """A failure with its remedy; the command line prints it as one line and exits with status 1."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
