"""Work that cannot be done in its time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from airflow_provider_soperator.work.protocols import WorkTimeout
from tests.patience import PATIENCE


def too_late(begin: Callable[[float], object], says: str, within: float = 10) -> str:
    """What is said at the end of work that is given so many seconds: on a slow machine, more, until it says that.

    It may have time for no more than its beginning, and says then what it had to do first.
    """
    while True:
        with pytest.raises(WorkTimeout) as late:
            begin(within)
        if re.search(says, str(late.value)):
            return str(late.value)
        assert within < PATIENCE, str(late.value)
        within *= 4
