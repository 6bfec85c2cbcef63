"""What all triggers of this package have in common: they are stored as the arguments they were made with."""

from __future__ import annotations

import inspect
from typing import Any

from airflow.triggers.base import BaseTrigger


class SlurmTrigger(BaseTrigger):
    """Keeps each of its arguments in an attribute of the same name."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}
