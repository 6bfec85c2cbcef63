"""Stock connections that a Soperator connection names: that they are there, and that their provider is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_soperator.transports.transport_errors import ConnectFailed


@contextmanager
def known(conn_id: str) -> Iterator[None]:
    """For what reads a connection by its id."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    try:
        yield
    except AirflowNotFoundException as error:
        raise ConnectFailed(f"there is no connection {conn_id}", "add it, or name another one") from error


@contextmanager
def installed(extra: str) -> Iterator[None]:
    """For imports of what only an extra of this package installs."""
    try:
        yield
    except ImportError as error:
        remedy = f"pip install 'airflow-provider-soperator[{extra}]'"
        raise ConnectFailed(f"the packages for {extra} are not installed ({error})", remedy) from error
