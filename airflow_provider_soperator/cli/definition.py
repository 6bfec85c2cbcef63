"""What ``airflow --help`` has of the command, which each start of ``airflow`` reads: it must import nothing heavy."""

from __future__ import annotations

import argparse
from typing import Any

_DEFAULT = "soperator_default"


class _AsJson(argparse.Action):
    """``--json``, which is short for ``--output json``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs | {"nargs": 0})

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        namespace.output = "json"


def get_cli_commands() -> list[Any]:
    """The group ``airflow soperator``."""
    from airflow.cli import cli_config
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, GroupCommand, lazy_load_command

    Arg: Any = cli_config.Arg  # It has no types.
    shared = (ARG_OUTPUT, Arg(("--json",), help="Short for --output json", action=_AsJson), ARG_VERBOSE)

    def option(name: str, said: str, **more: Any) -> Any:
        return Arg((f"--{name}",), help=said, **{"default": None if more.get("action") == "append" else ""} | more)

    def flag(name: str, said: str) -> Any:
        return option(name, said, action="store_true", default=False)

    def words(name: str, said: str, nargs: str) -> Any:
        return Arg((name,), help=said, **({"nargs": nargs} if nargs != "1" else {}))

    def action(place: str, said: str, *args: Any, name: str = "") -> Any:
        command = lazy_load_command(f"airflow_provider_soperator.cli.{place}")
        return ActionCommand(name=name or place.partition(".")[2], help=said, func=command, args=(*args, *shared))

    connection = option("conn-id", f"Connection (default: {_DEFAULT})", default=_DEFAULT)
    yes = flag("yes", "Do it without a question")
    states = ("active", "running", "pending", "ended")
    which = "Which jobs: active, running, pending or ended (default: active)"
    shown = option("state", which, choices=states, default="active")
    dag = words("dag", "Id of a DAG, or a file with one", "1")
    # Older Pythons do not understand words that may be left out, if they follow an option.
    sizes = words("sizes", "Before options: what targets are to have, such as training=2 or training='16 gpus'", "*")
    because = option("because", "Why, for plans and logs")
    commands = (
        action(
            "doctor.doctor",
            "Look at all that a connection needs; name what is wrong, and the remedy",
            connection,
            option("partition", "Partition that jobs will ask for"),
            option("account", "Account that jobs will ask for"),
            option("qos", "QOS that jobs will ask for"),
            option("folder", "Folder in which jobs run (default: the user's home)"),
            option("python", "Interpreter on the cluster (default: python3)"),
            option("feature", "Feature of docs/rbac that has to work; can be repeated", action="append"),
            option("nebius-conn-id", "Connection to Nebius (default: nebius_default, if it is there)"),
            option("block", "Id of a capacity block"),
            flag("executor", "Also try what SlurmExecutor needs, with a job"),
        ),
        action(
            "glance.board",
            "Show a cluster at a glance",
            connection,
            flag("watch", "Show it anew every 15 seconds, until Ctrl-C"),
        ),
        action(
            "glance.jobs",
            "List jobs with their tasks, and why they wait",
            option("search", "Words in id, name, task, user, account or partition"),
            shown,
            connection,
        ),
        action("glance.nodes", "List nodes with their state, jobs, and who has drained them", connection),
        action("glance.health", "List nodes that are ill, and why", connection),
        action("glance.why", "Tell why a job waits, or how it ended", words("job", "Id of the job", "1"), connection),
        action(
            "glance.leftovers",
            "List drains, reservations and files of DAGs that nothing will release",
            words("names", "Only these, as the list names them, and also those that may have an owner", "*"),
            flag("release", "Release them, after the plan was shown"),
            yes,
            connection,
        ),
        action(
            "dags.plan",
            "Show which jobs a DAG would submit, as sbatch commands, without a run",
            dag,
            words("task", "Before options: only this task", "?"),
            option("conf", "The conf of the run, as JSON"),
        ),
        action(
            "dags.lint",
            "Check DAG files: values, scripts, files; with --conn-id also partitions, accounts and QOS",
            words("dags", "Files or folders", "+"),
            option("conn-id", "Connection to the cluster that tasks with this connection are checked against"),
        ),
        action(
            "dags.import_script",
            "Print a DAG file for a script: one of chained sbatch calls, or a job's own",
            words("script", "The script; the DAG file belongs beside it", "1"),
            option("variable", "Variable for it, such as 1=data", action="append"),
            option("ignore", "Command without effect on jobs; can be repeated", action="append"),
            option("dag-id", "Id of the DAG (default: the script's name)"),
            option("conn-id", f"Connection that tasks use (default: {_DEFAULT})", default=_DEFAULT),
            name="import",
        ),
        action(
            "schedules.schedule",
            "Draw who has how many GPUs when, with what DAGs have in common",
            words("dags", "Ids of DAGs, files or folders (default: all DAGs of Airflow)", "*"),
            option("days", "Days that are drawn (default: 7)", type=int, default=7),
            option("at", "Moment at which it begins (default: now)"),
        ),
        action(
            "schedules.shift",
            "Show the plan of a shift, then start the DAG",
            dag,
            sizes,
            flag("plan", "Only the plan"),
            option("until", "Moment until which the schedule is overridden"),
            because,
            yes,
        ),
        action(
            "schedules.override",
            "List, add or remove overrides of a DAG's schedule",
            dag,
            sizes,
            option("since", "Moment from which it holds (default: now)"),
            option("until", "Moment until which it holds (default: the next handover)"),
            because,
            flag("remove", "Remove those that hold between since and until, or all"),
            yes,
        ),
        action(
            "advise.advise",
            "Propose schedules from a month of jobs and requests, with what each would have changed",
            dag,
            option("days", "Days up to now that are replayed (default: 28)", type=int, default=28),
            option("jobs", "File that sacct has printed, in place of Slurm's accounting"),
            option("requests", "File with an answer of Prometheus to query_range; can be repeated", action="append"),
            option("nodes", "Nodes of the block (default: the schedule's limit)", type=int, default=0),
            option("transfer", "Minutes of a machine from one side to the other", type=int, default=0),
            option("seconds", "Seconds of a request (default: the DAG's service_time)", type=float, default=0.0),
            option("requeued", "Share of jobs that may be requeued (mode force: 0.5)", type=float, default=None),
        ),
        action(
            "connect.connection",
            "Ask for a connection, test it, and print it for the environment",
            words("fields", "Its fields, such as host=login.example.com login=airflow", "*"),
            option("type", "soperator or nebius (default: soperator)", choices=("soperator", "nebius")),
            option("conn-id", f"Its id (default: {_DEFAULT}, or nebius_default)"),
            flag("no-test", "Only print it"),
        ),
    )
    about = "Look at Slurm clusters, lint DAGs of jobs, plan shifts of capacity"
    return [GroupCommand(name="soperator", help=about, subcommands=commands)]
