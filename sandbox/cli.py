"""The command line: ``python -m sandbox up|status|shell|connections|fault|demo|down``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sandbox import access, faults, lifecycle, preflight, status
from sandbox.airflow import tables
from sandbox.airflow.beside import Airflow
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox
from sandbox.rootfs import RootCache, own_root
from sandbox.settings import ENVIRONMENT, SUITES, Settings

#: Options of ``up``, by the field of ``Settings`` that each sets.
OPTIONS: dict[str, str] = {
    "slurm": f"Slurm version: {' or '.join(SUITES)}",
    "root": "a folder with the root of a Debian and your own Slurm in it, to run that instead",
    "soperator": "whose habits to take on, 4.1 or 5.0; by default those that go with the Slurm version",
    "workers": "node names in the ephemeral node set",
    "gpus": "GPUs of each worker",
    "static": "nodes in the static node set, which has no GPUs",
    "initial": "ephemeral workers that are on from the start",
    "block": "GPUs in the capacity block; by default as many as the workers have",
    "port_base": "first of the 200 ports that the sandbox may use; by default the next free range",
    "resume_timeout": "seconds a node has to boot",
    "suspend_timeout": "seconds from power down until Slurm takes a node for powered down",
    "slurmd_timeout": "seconds after which a silent node is down",
    "min_job_age": "seconds a finished job stays in the queue",
    "kill_wait": "seconds between SIGTERM and SIGKILL at a job's end",
    "message_timeout": "seconds that Slurm's daemons wait for each other",
    "vm_boot": "seconds a machine takes to boot",
    "vm_lag": "seconds a machine stays, empty, after its node is powered down",
    "vm_removal": "seconds until the GPUs of a removed machine are back in the block",
    "rollout_lag": "seconds until Pods begin to follow another image or other resources in the objects",
    "flux_interval": "seconds between two looks of Flux at the values of its releases",
    "backup_time": "seconds that a backup of the jail takes",
    "checks": "on or off: whether Soperator's check controllers act on drained nodes and on conditions of Nodes",
    "node_replacement": "on or off: whether machines are replaced for drained nodes; by default on, in a bare one off",
    "extensive_check": "on or off: whether a [node_problem] is tested further first; by default on up to 4.1",
    "checks_interval": "seconds between two looks of the check controllers; up to three times that if nothing changes",
}
#: What stands for the value of an option that is no number.
METAVARS = {
    **{"slurm": "VERSION", "soperator": "VERSION", "root": "DIR"},
    **dict.fromkeys(("checks", "node_replacement", "extensive_check"), "on|off"),
}


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    # Whoever ends it in the middle of a start ends it as Ctrl-C does: nothing stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        preflight.check_machine()
        return int(options.run(options) or 0)
    except SandboxError as error:
        # What a program has said may have several lines; the user gets one.
        print(f"sandbox: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except OSError as error:
        # A full disk, a folder that is none: nothing of the sandbox's own, so the words of the system are the best.
        print(
            f"sandbox: {error.strerror or error} ({error.filename or 'no file'}): see `df` and the path",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("sandbox: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"sandbox: {message}: see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m sandbox", description="A whole Soperator on one machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, help: str, run: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=_sentence(help))
        added.add_argument("--name", default="default", help="which sandbox, where there are several")
        added.set_defaults(run=run)
        return added

    up = command("up", "start a sandbox, or what does not run of it", _up)
    _add_settings(up)
    up.add_argument(
        "--bare",
        action="store_true",
        default=argparse.SUPPRESS,
        help="Soperator's operator alone: a Slurm comes once you apply a SlurmCluster and NodeSets",
    )
    command("status", "show daemons, nodes, jobs and the capacity block", _status)
    shell = command("shell", "open a shell on the login node, or run a command there", _shell)
    shell.add_argument("--pod", default="sshd", help="the daemon whose Pod to enter, such as slurmctld or worker-0")
    shell.add_argument("argv", nargs="*", metavar="COMMAND", help="what to run; put -- before it")
    command("connections", "print the Airflow connections of a running sandbox", _connections)
    fault = command("fault", "break something", _fault)
    kinds = fault.add_subparsers(required=True, metavar="FAULT", dest="fault")
    for one in faults.FAULTS:
        kind = kinds.add_parser(one.name, help=one.help, description=_sentence(one.help))
        for words, keywords in one.arguments:
            kind.add_argument(*words, **keywords)
    show = command("demo", "run an example DAG in an Airflow on a sandbox, and watch it", _demo)
    _add_settings(show)
    executors = "where its tasks run: beside the scheduler, or as jobs on nodes (local)"
    show.add_argument("--executor", choices=("local", "slurm"), default="local", help=executors)
    down = command("down", "stop a sandbox and remove all it has written", _down)
    down.add_argument("--all", action="store_true", help="all sandboxes of this machine")
    down.add_argument("--purge", action="store_true", help="remove the cached roots and the tables of Airflow, too")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name, help in OPTIONS.items():
        default = defaults[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            # Only what is given is compared with a sandbox that runs already.
            default=argparse.SUPPRESS,
            metavar=METAVARS.get(name, "N"),
            help=f"{help} ({default})" if default else help,
        )
    parser.add_argument(
        "--slurm-conf",
        action="append",
        default=argparse.SUPPRESS,
        metavar="LINE",
        help="a line to add to slurm.conf",
    )


def _up(options: argparse.Namespace) -> None:
    sandbox = _requested(options)
    with _progress() as progress:
        sandbox.up(progress)
        if (airflow := Airflow(sandbox)).exists:
            airflow.up(progress)
    facts = access.describe(sandbox.settings)
    console = Console(highlight=False)
    console.print(f"[green]sandbox {sandbox.settings.name} is up[/]: Slurm {sandbox.settings.slurm}")
    print(f"\n  log in     {_ssh_command(facts)}")
    print(f"  kubectl    export KUBECONFIG={facts['kubernetes']['kubeconfig']}")
    print(f"  all facts  {sandbox.paths.access}")
    print("\nAirflow connections:\n")
    _print_connections(facts)


def _requested(options: argparse.Namespace) -> Sandbox:
    """The sandbox as it is if there is one, else as the options ask for it."""
    others = ("slurm_conf", "bare", "visible")
    given = {name: value for name, value in vars(options).items() if name in (*OPTIONS, *others)}
    if "root" in given:
        given |= own_root(given["root"], given.get("slurm", ""))
    wanted = Settings(name=options.name, **given)
    if not wanted.paths.settings.exists():
        return Sandbox(wanted)
    sandbox = Sandbox.existing(options.name)
    if other := lifecycle.differences(sandbox.settings, given):
        raise SandboxError(
            f"sandbox {options.name!r} was made with {', '.join(other)}",
            f"take it down first with `python -m sandbox down --name {options.name}`, or choose another --name",
        )
    return sandbox


def _status(options: argparse.Namespace) -> int:
    return 0 if status.show(Sandbox.existing(options.name), Console(markup=False)) else 1


def _shell(options: argparse.Namespace) -> int:
    sandbox = Sandbox.existing(options.name)
    words = options.argv or ["bash", "-l"]
    if len(words) == 1 and " " in words[0]:
        # One word with spaces is a line of shell, as for ssh.
        words = ["bash", "-lc", words[0]]
    argv = sandbox.init.enter(options.pod, words)
    environment = ENVIRONMENT | {"HOME": "/root"}
    os.execvpe(argv[0], argv, environment | {"TERM": os.environ.get("TERM", "dumb")})


def _connections(options: argparse.Namespace) -> None:
    _print_connections(access.describe(Sandbox.existing(options.name).settings))


def _print_connections(facts: dict[str, dict[str, str]]) -> None:
    for variable, uri in facts["airflow_connections"].items():
        print(f"export {variable}='{uri}'")


def _ssh_command(facts: dict[str, dict[str, str]]) -> str:
    ssh = facts["ssh"]
    known = f"-o UserKnownHostsFile={ssh['known_hosts']}"
    return f"ssh -i {ssh['key_file']} {known} -p {ssh['port']} {ssh['user']}@{ssh['host']}"


def _fault(options: argparse.Namespace) -> None:
    print(faults.bring(Sandbox.existing(options.name), options.fault, options))


def _demo(options: argparse.Namespace) -> None:
    # What it asks Airflow with takes as long to import as all that other commands need.
    from sandbox.demo import run as demo

    shown = demo.SHOWN[options.executor]
    if shown.on_nodes:
        options.visible = demo.visible(options.name)
    sandbox = _requested(options)
    demo.check(sandbox.settings, shown)
    demo.run(sandbox, shown, Console(highlight=False, soft_wrap=True), _progress)


def _down(options: argparse.Namespace) -> None:
    for name in lifecycle.all_names() if options.all else [options.name]:
        there = lifecycle.remove_remains(name)
        print(f"sandbox {name} is down" if there else f"there is no sandbox {name}")
    if options.purge:
        if others := lifecycle.all_names():
            raise SandboxError(f"{', '.join(others)} still need the cached roots", "use `down --all --purge`")
        RootCache().remove()
        shutil.rmtree(tables.folder(), ignore_errors=True)


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=1.0)
        last = ""

        def report(share: float, label: str) -> None:
            nonlocal last
            progress.update(task, completed=share, description=label)
            # A log has no bar: there each step is a line. Standard error is left to what goes wrong.
            if not console.is_terminal and label != last:
                print(f"sandbox: {label}", flush=True)
            last = label

        yield report
