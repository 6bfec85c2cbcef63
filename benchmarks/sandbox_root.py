"""A root from nothing: the whole first start of a sandbox, for each Slurm version."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from unittest import mock

from benchmarks.table import Row
from sandbox.lifecycle import Sandbox
from sandbox.settings import SUITES, Settings


def run() -> list[Row]:
    rows = []
    # Beside the usual place rather than in /tmp, which is often too small or in memory.
    Path("/var/lib").mkdir(exist_ok=True)
    for version in SUITES:
        home = tempfile.mkdtemp(prefix="soperator-sandbox-bench-", dir="/var/lib")
        with mock.patch.dict(os.environ, SOPERATOR_SANDBOX_HOME=home):
            sandbox = Sandbox(Settings(name="bench-root", slurm=version))
            try:
                started = time.monotonic()
                sandbox.up()
                took = time.monotonic() - started
            finally:
                sandbox.down()
                shutil.rmtree(home)
        rows.append(Row("root", f"first up from nothing, Slurm {version}", f"{took:.0f} s", "180 s", took < 180))
    return rows
