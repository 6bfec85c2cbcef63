"""``python -m airflow_provider_soperator …`` is ``airflow soperator …``."""

from __future__ import annotations

import sys


def main() -> None:
    from airflow import __main__ as airflow

    sys.argv = ["airflow", "soperator", *sys.argv[1:]]
    airflow.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
