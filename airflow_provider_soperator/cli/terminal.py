"""What all commands share: rows in each format, questions to the user, and errors as sentences."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.errors import CapacityError, ClusterError, ConnectionMistake
from airflow_provider_soperator.hooks.check import in_words, sentences

Command = Callable[[Namespace], None]
#: Formats that programs read.
_FOR_PROGRAMS = ("json", "yaml", "plain")
#: Those of them that write control characters as escapes.
_ESCAPED = ("json", "yaml")


def command(run: Command) -> Command:
    """A command that reads Airflow's database, and tells of an error in a sentence on its standard error."""

    @functools.wraps(run)
    def guarded(args: Namespace) -> None:
        from airflow.utils.cli import suppress_logs_and_warning

        # Only so does Airflow look for connections in its database, as its own commands do.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        args.verbose = getattr(args, "verbose", False)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal may be without bars and names; what goes to a file keeps all.
            sys.stdout.reconfigure(errors="replace" if sys.stdout.isatty() else "backslashreplace")
        try:
            try:
                suppress_logs_and_warning(run)(args)
            finally:
                # Python itself would do so too late for what follows.
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(130)
        except EOFError:
            # Ctrl-D, in place of an answer.
            sys.exit("Nothing was changed.")
        except BrokenPipeError:
            # `| head` has read enough; whether all was well is not known, and a shell calls this 141.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        except Exception as error:
            if args.verbose:
                raise
            sys.exit(told(error))

    return guarded


def told(error: Exception) -> str:
    """The error as sentences: of its cause, and of its remedy."""
    if isinstance(error, (ClusterError, ConnectionMistake, CapacityError)):
        return in_words(error)
    # Their messages are for users.
    if isinstance(error, (ValueError, LookupError, OSError)) or type(error).__module__.startswith("airflow"):
        return sentences(str(error) or type(error).__name__)
    return sentences(f"{type(error).__name__}: {error}", "the option --verbose shows where")


def show(args: Namespace, rows: Iterable[Mapping[str, Any]], text: str | None = None, none: str | None = None) -> None:
    """Print rows as Airflow's own commands do; people who have chosen no format see the text, if there is one.

    ``none``: the text where there are no rows.
    """
    rows = list(rows)
    text = text if rows else none or text
    if text is not None and args.output not in _FOR_PROGRAMS:
        print(text)
        return
    from airflow.cli.simple_table import AirflowConsole

    if args.output not in _ESCAPED:
        rows = [{name: visible(value) for name, value in row.items()} for row in rows]

    class PipedConsole(AirflowConsole):
        def on_broken_pipe(self) -> None:
            # rich would end the command with status 1; it asks while it handles the error.
            raise

    # Reasons begin with [node_problem], and jobs have any name: neither is markup.
    PipedConsole(markup=False, emoji=False).print_as(rows, args.output)


def visible(value: Any) -> Any:
    """A text of others without what a terminal would obey."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", "?", value) if isinstance(value, str) else value


def tell(line: str) -> None:
    """Print what is no part of the result."""
    print(line, file=sys.stderr)


def agreed(args: Namespace, question: str) -> None:
    """Ask before something is changed; ends the command without consent."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        sys.exit("Nothing was changed. Repeat it with --yes.")
    if answer(f"{question} [y/N] ").lower() not in ("y", "yes"):
        sys.exit("Nothing was changed.")


def answer(question: str) -> str:
    """Ask on the standard error, as what a command prints may go to a file."""
    print(question, end="", file=sys.stderr, flush=True)
    return input().strip()


def moment_text(moment: datetime | None) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds") if moment else ""
