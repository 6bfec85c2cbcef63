"""What all commands share: how they end when the terminal is at fault."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

import pytest

from airflow_provider_soperator.cli.terminal import command


def test_one_whose_output_nobody_reads_to_its_end_does_not_say_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.close(read)

    @command
    def wordy(args: Namespace) -> None:
        print("a problem", flush=True)

    with os.fdopen(write, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as end:
            wordy(Namespace())
    assert end.value.code == 141
