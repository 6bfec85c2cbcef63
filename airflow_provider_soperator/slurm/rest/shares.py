"""Fair shares over slurmrestd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_soperator.slurm.accounts import Share
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests.shares import ListShares, by_name
from airflow_provider_soperator.slurm.rest.answers import Json, asked, number
from airflow_provider_soperator.slurm.rest.calls import Call, Site, Steps, handles

#: From here on a number of shares is the mark for those of the parent.
_PARENTS = 0x7FFF_FFFF
#: From here on a level is one of Slurm's marks: below it for none, and above it for infinity.
_NO_LEVEL = 0xFFFF_FFFD
#: Digits that ``sshare`` prints.
_DIGITS = 6


@handles
def list_shares(request: ListShares, site: Site) -> Steps[tuple[Share, ...]]:
    try:
        data = yield from asked(Call("GET", "slurm/shares"))
    except SlurmError:
        # Whatever it was, slurmrestd says that this failed, and no more; asked for anything else, it says why.
        yield from asked(Call("GET", "slurm/diag/"))
        raise
    return by_name(map(_share, (data.get("shares") or {}).get("shares") or ()))


def _share(said: Json) -> Share:
    is_user = "USER" in said["type"]
    shares = number(said["shares"])
    has_own = shares is not None and shares < _PARENTS
    fair = said["fairshare"]
    return Share(
        account=said["parent"] if is_user else said["name"],
        user=said["name"] if is_user else "",
        partition=said.get("partition") or "",
        shares=shares if has_own else None,
        normal_shares=_part(said["shares_normalized"]),
        usage=said["usage"],
        normal_usage=_part(said["usage_normalized"]),
        effective_usage=_part(said["effective_usage"]),
        fair_share=_part(fair["factor"]) if is_user else None,
        # Who has no shares of their own is on no level.
        level=_level(fair["level"]) if has_own else None,
    )


def _part(value: Any) -> float | None:
    """A fraction: a plain number before v0.0.42."""
    if isinstance(value, Mapping):
        if not value["set"] and not value["infinite"]:
            return None
        value = math.inf if value["infinite"] else value["number"]
    return round(float(value), _DIGITS)


def _level(value: Any) -> float | None:
    level = _part(value)
    if level is None or level < _NO_LEVEL:
        return level
    return math.inf if level > _NO_LEVEL + 2 else None
