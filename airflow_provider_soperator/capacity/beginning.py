"""The first look at a shift: everything that could be wrong with it is found before anything is moved."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_soperator.capacity.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.plan import Plan
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.targets.base import Clients
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, TransportError


async def begin(
    order_for: Callable[[int], ShiftOrder], block: str, nebius_conn_id: str, clients: Clients, log: Logger
) -> tuple[ShiftOrder, Plan]:
    """The order for a block of so many GPUs, checked, and what would be done for it now.

    Raises ``CapacityMistake`` for what another try would find the same, and ``CapacityError`` for all else.
    """
    try:
        order = order_for((await clients.block(nebius_conn_id, block)).limit)
        async with Shift.open(order, clients, log) as shift:
            return order, await shift.plan(await shift.check())
    except ConnectionMistake as error:
        raise CapacityMistake(str(error)) from error
    except (SlurmError, TransportError) as error:
        # Nobody being there may pass.
        may_pass = error.retryable or isinstance(error, ConnectFailed)
        raise (CapacityError if may_pass else CapacityMistake)(str(error)) from error
