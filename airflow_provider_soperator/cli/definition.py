"""What ``airflow --help`` has of the command, which each start of ``airflow`` reads: it must import nothing heavy."""

from __future__ import annotations

from typing import Any


def get_cli_commands() -> list[Any]:
    """The group ``airflow soperator``."""
    from airflow.cli import cli_config
    from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, GroupCommand, lazy_load_command

    Arg: Any = cli_config.Arg  # It has no types.
    default = "soperator_default"
    connection = Arg(("--conn-id",), help=f"Connection (default: {default})", default=default)
    search = Arg(("--search",), help="Words in id, name, task, user, account or partition", default="")
    shown = Arg(
        ("--state",),
        help="Which jobs: active, running, pending or ended (default: active)",
        choices=("active", "running", "pending", "ended"),
        default="active",
    )

    def action(name: str, said: str, *args: Any) -> Any:
        command = lazy_load_command(f"airflow_provider_soperator.cli.commands.{name}")
        return ActionCommand(name=name, help=said, func=command, args=(*args, connection))

    return [
        GroupCommand(
            name="soperator",
            help="Look at Slurm clusters of Soperator connections",
            subcommands=(
                action("jobs", "List jobs with their tasks, and why they wait", search, shown, ARG_OUTPUT),
                action("nodes", "List nodes with their state, jobs, and who has drained them", ARG_OUTPUT),
                action("health", "List what Slurm has against nodes", ARG_OUTPUT),
                action("held", "List drains and reservations of DAGs", ARG_OUTPUT),
                action("why", "Tell why a job waits, or how it ended", Arg(("job",), help="Id of the job")),
                action("test", "Test the connection"),
            ),
        )
    ]
