"""The id of an Airflow, which tells apart two that run the same DAGs, such as staging and production."""

from __future__ import annotations

from hashlib import sha256
from uuid import uuid4

from airflow.sdk import Variable, conf

#: Airflow has no id of its own, so the first task that needs one makes it.
VARIABLE = "soperator_installation"


def installation_id() -> str:
    """The id, in an Airflow worker.

    It is of a Variable, which lives as long as Airflow's database, and of the address, which a copy of the database
    does not share.
    """
    if not (known := Variable.get(VARIABLE, default=None)):
        Variable.set(VARIABLE, uuid4().hex, description="Tells this Airflow apart in the leases of capacity blocks")
        # Another task may have set it a moment later.
        known = Variable.get(VARIABLE)
    address = conf.get("api", "base_url", fallback="") or ""
    return sha256(f"{known} {address.rstrip('/')}".encode()).hexdigest()[:12]
