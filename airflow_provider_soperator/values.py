"""Parameters of DAG files and their rendered templates: switches, dates and times, templates themselves."""

from __future__ import annotations

from datetime import datetime

#: Default namespace of a cluster in Soperator's Helm charts.
NAMESPACE = "soperator"
#: Texts that mean no.
_NO = frozenset({"", "0", "false", "no", "none", "off"})


def is_template(said: object) -> bool:
    """True for a value that is known only when the task runs: a template, or the result of another task.

    >>> is_template("{{ params.count }}"), is_template(4)
    (True, False)
    """
    # An XComArg, without an import of Airflow.
    return hasattr(said, "iter_references") or (isinstance(said, str) and ("{{" in said or "{%" in said))


def is_on(option: bool | str | None) -> bool:
    """True for an option that is on once its template has been rendered.

    >>> is_on(True), is_on("False"), is_on("{}".format(None))
    (True, False, False)
    """
    return str(option).lower() not in _NO


def moment_of(what: str, said: datetime | str | None) -> datetime | None:
    """Parse a date and time; None for a template that rendered to nothing. ``ValueError`` for anything else.

    >>> moment_of("since", "2026-11-21T20:00:00+01:00").hour
    20
    >>> moment_of("since", "noon")
    Traceback (most recent call last):
    ValueError: since='noon' is not a date and time, such as 2026-11-21T20:00:00+01:00
    """
    said = said.strip() if isinstance(said, str) else said
    if said in (None, "", "None"):
        return None
    import pendulum

    try:
        # Without a zone it would otherwise be taken as UTC.
        parsed = pendulum.parse(said, tz=None) if isinstance(said, str) else said
    except ValueError:
        raise ValueError(f"{what}={said!r} is not a date and time, such as 2026-11-21T20:00:00+01:00") from None
    if not isinstance(parsed, datetime) or parsed.tzinfo is None:
        raise ValueError(f"{what}={said!r} is not a date and time with a time zone, such as +01:00")
    return parsed
