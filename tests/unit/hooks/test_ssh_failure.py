"""A failed SSH connection names its host and its Airflow connection, with or without a host."""

from __future__ import annotations

import pytest
from airflow.sdk import Connection

from airflow_provider_soperator.hooks import transports
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, Unreachable


def test_host_port_and_connection_are_named() -> None:
    connection = Connection(conn_id="mine", conn_type="soperator", host="127.0.0.1", port=9, login="root")
    with pytest.raises(Unreachable, match=r"^nothing listens there .* at 127.0.0.1:9 \(connection mine\): check host"):
        transports._opened("mine", connection, {})


def test_one_without_a_host_names_the_connection() -> None:
    with pytest.raises(ConnectFailed, match=r"^the connection has no host \(connection mine\): set it"):
        transports._opened("mine", Connection(conn_id="mine", conn_type="ssh"), {})
