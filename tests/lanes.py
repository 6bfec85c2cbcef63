"""Lanes: tests that share something follow each other in one process, and lanes run side by side."""

from __future__ import annotations

import pytest


def lane_of(item: pytest.Item) -> str:
    """The name of the lane that a test is in, if it is in one."""
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0] if mark.args else mark.kwargs.get("name")) if mark else ""
