"""Faults on demand: what can break in a real cluster, made to break in the sandbox."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import psutil

from sandbox import daemons
from sandbox.cloud.faults import GPU_METRICS, Effect
from sandbox.control import ANSWER, request
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox

#: Texts that Soperator, its checks or Slurm itself put on a drained node, by a short name for each.
DRAIN_REASONS = {
    "gpu-health": "[node_problem] gpu_health_check: XID 79 [hc_program]",
    "hardware": "[hardware_problem] gpu_health_check: job 42 [slurm_job]",
    "gpus-busy": "[user_problem] alloc_gpus_busy: a process holds GPU 0 [prolog]",
    "boot-disk-full": "[user_problem] boot_disk_full: 96 percent used [hc_program]",
    "memory-used": "[user_problem] alloc_mem_used [hc_program]",
    "ephemeral-storage": "[user_problem] pod_ephemeral_storage 87% of ephemeral storage is used",
    "maintenance": "[compute_maintenance] node replacement process",
    "reboot": "[compute_maintenance] node reboot process",
    "kill-task-failed": "Kill task failed",
    "prolog": "Prolog error",
    "not-responding": "Not responding",
    "rolling-update": "soperator rolling update",
}

Options = argparse.Namespace


@dataclass(frozen=True)
class Fault:
    """One fault of the command line: its words, and what it does to a sandbox. ``bring`` says what has happened."""

    name: str
    help: str
    bring: Callable[[Sandbox, Options], str]
    arguments: list[tuple[tuple[str, ...], dict[str, Any]]] = field(default_factory=list)


def bring(sandbox: Sandbox, name: str, options: Options) -> str:
    fault = next(fault for fault in FAULTS if fault.name == name)
    try:
        return fault.bring(sandbox, options)
    except (RuntimeError, OSError) as error:
        raise SandboxError(f"{name} could not be brought about ({error})", "see `python -m sandbox status`") from error


def _cloud(sandbox: Sandbox, do: str, **arguments: Any) -> Any:
    return request(sandbox.paths.cloud_control, ANSWER, do=do, **arguments)


def _scontrol(sandbox: Sandbox, *words: str) -> None:
    said = sandbox.init.run("slurmctld", ["scontrol", *words])
    if said.returncode:
        raise RuntimeError((said.stderr or said.stdout).strip())


def _kill(daemon: str) -> Callable[[Sandbox, Options], str]:
    def bring(sandbox: Sandbox, options: Options) -> str:
        sandbox.init.signal(daemon, signal.SIGKILL)
        return f"{daemon} was killed; `python -m sandbox up` starts it again"

    return bring


def _freeze(daemon: str) -> Callable[[Sandbox, Options], str]:
    def bring(sandbox: Sandbox, options: Options) -> str:
        sandbox.init.signal(daemon, signal.SIGSTOP)
        return f"{daemon} is stopped, its port still accepts connections; `python -m sandbox fault clear` lets it go on"

    return bring


def _cut_login(sandbox: Sandbox, options: Options) -> str:
    cut = 0
    for connection in sandbox.init.outside("sshd").children():
        # The connection breaks as if a cable were pulled; what it had started runs on. More than one process holds it.
        held: list[psutil.Process] = [connection]
        # Any of them may end by itself meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            held += connection.children(recursive=True)
        for process in held:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    process.kill()
        cut += 1
    return f"{cut} login connections were cut"


def _node_dies(sandbox: Sandbox, options: Options) -> str:
    machine = _cloud(sandbox, "node_dies", node=options.node)
    patience = sandbox.settings.slurmd_timeout
    gone = f"machine {machine} under {options.node} is gone, with all that ran on it"
    return f"{gone}; Slurm takes {patience} s or so to find out, then comes another"


def _no_boot(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "no_boot", node=options.node)
    return f"{options.node} does not boot until `fault clear`"


def _drain(sandbox: Sandbox, options: Options) -> str:
    reason = DRAIN_REASONS.get(options.reason, options.reason)
    _scontrol(sandbox, "update", f"nodename={options.node}", "state=drain", f"reason={reason}")
    return f"{options.node} is drained: {reason}"


def _condition(sandbox: Sandbox, options: Options) -> str:
    words = {"node": options.node, "type": options.type, "status": options.status == "True"}
    machine = _cloud(sandbox, "condition", **words, reason=options.reason, message=options.message)
    return f"Node {machine} under {options.node} has condition {options.type}={options.status}"


def _checks(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "checks", on=options.switch == "on")
    return "the check controllers act" if options.switch == "on" else "nobody acts on drains and conditions of Nodes"


def _check_fails(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "check_fails", check=options.check, node=options.node)
    return f"{options.check} fails {f'on {options.node}' if options.node else 'everywhere'} from its next run on"


def _backup_fails(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "backup_fails")
    return "each backup that ends from now on has failed"


def _cluster_phase(sandbox: Sandbox, options: Options) -> str:
    conditions = [_condition_of(words) for words in options.conditions]
    _cloud(sandbox, "cluster_phase", phase=options.phase, conditions=conditions)
    return f"the SlurmCluster's status says {options.phase}, whatever is the case"


def _condition_of(words: str) -> dict[str, Any]:
    """A condition written as TYPE=STATUS or TYPE=STATUS:REASON."""
    type_, _, rest = words.partition("=")
    status, _, reason = rest.partition(":")
    truths = {"True": True, "False": False, "Unknown": None}
    if not type_ or status not in truths:
        raise SandboxError(f"{words!r} is no condition", "write it as LoginAvailable=False:NotAvailable")
    message = "said by a fault of the sandbox"
    return {"type_": type_, "status": truths[status], "reason": reason or "SandboxFault", "message": message}


def _nodeset_phase(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "nodeset_phase", nodeset=options.nodeset, phase=options.phase)
    return f"the status of NodeSet {options.nodeset} says {options.phase}, whatever is the case"


def _maintenance(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "maintenance", mode="downscale" if options.switch == "on" else "none")
    return "all of the cluster is being stopped" if options.switch == "on" else "the cluster comes back"


def _gpu_metric(sandbox: Sandbox, options: Options) -> str:
    words = {"node": options.node, "metric": options.metric, "value": options.value, "gpu": options.gpu}
    machine = _cloud(sandbox, "gpu_metric", **words)
    return f"{options.metric} of GPU {options.gpu} of {options.node} is {options.value:g} while {machine} is there"


def _api(sandbox: Sandbox, options: Options) -> str:
    words = {"api": options.api, "effect": options.effect, "matching": options.matching}
    _cloud(sandbox, "api_fault", **words, count=options.count or None)
    times = f"the next {options.count} calls" if options.count else "all calls"
    return f"{options.api}: {options.effect} on {times} that match {options.matching!r}"


def _exhaust(sandbox: Sandbox, options: Options) -> str:
    gpus = _cloud(sandbox, "exhaust", leave=options.leave)
    return f"somebody else holds {gpus} GPUs of the block now"


def _limit(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "limit", gpus=options.gpus, after=options.after)
    when = f"is to have {options.gpus} GPUs in {options.after:g} s" if options.after else f"has {options.gpus} GPUs now"
    return f"the block {when}"


def _allowance(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "allowance", project=options.project, gpus=options.gpus)
    return f"{options.project} may have {options.gpus} GPUs of the block now"


def _usage_unknown(sandbox: Sandbox, options: Options) -> str:
    _cloud(sandbox, "usage_unknown")
    return "the block's usage is reported as unknown"


def _slow_jail(sandbox: Sandbox, options: Options) -> str:
    """Delay every call on a file name in the processes of the login node and of the workers."""
    if options.delay <= 0:
        raise SandboxError(f"--delay {options.delay} delays nothing", "give a number of seconds above 0")
    targets = ["sshd", *(name for name in sandbox.init.processes() if name.startswith("worker-"))]
    attach = [word for pid in sandbox.init.daemon_pids(targets) for word in ("-p", str(pid))]
    inject = f"inject=%file:delay_enter={round(options.delay * 1e6)}"
    quiet = ["-e", "trace=%file", "-e", "signal=none", "-o", "/dev/null"]
    argv = ["chroot", str(sandbox.paths.root), "strace", "-f", "-qq", *quiet, "-e", inject, *attach]
    sandbox.init.stop("slow-jail")
    sandbox.init.start("slow-jail", argv)
    daemons.wait_for(
        lambda: all(map(sandbox.init.is_traced, targets)),
        "strace does not reach the daemons",
        lambda: not sandbox.init.processes()["slow-jail"]["pid"],
        sandbox.paths.logs / "slow-jail.log",
    )
    return f"each access to a file takes {options.delay} s longer for what starts now on {len(targets)} nodes"


def _clear(sandbox: Sandbox, options: Options) -> str:
    sandbox.init.stop("slow-jail")
    sandbox.resume_frozen()
    _cloud(sandbox, "clear")
    return "all faults but drains and conditions are cleared; `python -m sandbox up` starts what was killed"


_SWITCH = (("switch",), {"choices": ["on", "off"]})
_NODE = (("node",), {"help": "a Slurm node, such as worker-0"})

FAULTS = [
    Fault("slurmctld-down", "kill slurmctld", _kill("slurmctld")),
    Fault("slurmctld-hung", "stop slurmctld: it accepts connections and never answers", _freeze("slurmctld")),
    Fault("slurmdbd-down", "kill slurmdbd", _kill("slurmdbd")),
    Fault("slurmrestd-down", "kill slurmrestd", _kill("slurmrestd")),
    Fault("login-cut", "cut all connections to the login node, whatever runs over them", _cut_login),
    Fault("node-dies", "lose the machine under a node", _node_dies, [_NODE]),
    Fault("node-no-boot", "keep a node from booting, so that ResumeTimeout strikes", _no_boot, [_NODE]),
    Fault(
        "node-drain",
        "drain a node with one of Soperator's reasons",
        _drain,
        [_NODE, (("reason",), {"help": f"one of {', '.join(DRAIN_REASONS)}; or any text"})],
    ),
    Fault(
        "node-condition",
        "set a condition on the Kubernetes Node under a Slurm node",
        _condition,
        [
            _NODE,
            (("type",), {"help": "such as NebiusMaintenanceScheduled or HardwareIssuesSuspected"}),
            (("--status",), {"choices": ["True", "False"], "default": "True"}),
            (("--reason",), {"default": "SandboxFault"}),
            (("--message",), {"default": "set by a fault of the sandbox"}),
        ],
    ),
    Fault("checks", "switch Soperator's check controllers on or off", _checks, [_SWITCH]),
    Fault(
        "check-fails",
        "make an ActiveCheck fail from its next run on",
        _check_fails,
        [
            (("check",), {"help": "an ActiveCheck, such as gpu-checks or create-user-soperatorchecks"}),
            (("node",), {"nargs": "?", "default": "", "help": "only the job on this node fails; by default each does"}),
        ],
    ),
    Fault("backup-fails", "make the backups fail that end from now on", _backup_fails),
    Fault(
        "cluster-phase",
        "have the SlurmCluster's status say something else than is the case",
        _cluster_phase,
        [
            (("phase",), {"help": "such as Pending, Reconciling or 'Not available'"}),
            (("conditions",), {"nargs": "*", "metavar": "TYPE=STATUS:REASON", "help": "conditions to go with it"}),
        ],
    ),
    Fault(
        "nodeset-phase",
        "have a NodeSet's status say something else than is the case",
        _nodeset_phase,
        [(("nodeset",), {"help": "such as worker-cpu"}), (("phase",), {"help": "such as Pending or Provisioning"})],
    ),
    Fault(
        "gpu-metric",
        "set what Prometheus says of a GPU",
        _gpu_metric,
        [
            _NODE,
            (("metric",), {"help": f"one of {', '.join(GPU_METRICS)}"}),
            (("value",), {"type": float}),
            (("--gpu",), {"type": int, "default": 0, "help": "which of the node's GPUs"}),
        ],
    ),
    Fault("maintenance", "put the SlurmCluster into maintenance, or end that", _maintenance, [_SWITCH]),
    Fault(
        "api",
        "make calls on one of the two APIs fail, hang or conflict",
        _api,
        [
            (("api",), {"choices": ["kubernetes", "nebius"]}),
            (("effect",), {"choices": list(get_args(Effect))}),
            (
                ("--matching",),
                {
                    "default": "*",
                    "help": "shell pattern, such as 'PATCH nodesets/*' or 'NodeGroupService/Update'",
                },
            ),
            (("--count",), {"type": int, "default": 1, "help": "calls to strike; 0: all until cleared"}),
        ],
    ),
    Fault(
        "block-exhausted",
        "let somebody else take what is free of the capacity block",
        _exhaust,
        [(("--leave",), {"type": int, "default": 0, "help": "GPUs to leave free"})],
    ),
    Fault(
        "block-limit",
        "change the number of GPUs that the block has",
        _limit,
        [
            (("gpus",), {"type": int, "help": "the new limit"}),
            (("--after",), {"type": float, "default": 0, "help": "seconds until then, for which it is announced"}),
        ],
    ),
    Fault(
        "allowance",
        "limit what a project may have of the capacity block",
        _allowance,
        [
            (("project",), {"help": "the project of the node groups, as project-e00sandbox"}),
            (("gpus",), {"type": int, "help": "GPUs that it may have"}),
        ],
    ),
    Fault("block-unknown", "report the block's usage as unknown", _usage_unknown),
    Fault(
        "slow-jail",
        "make each access to a file slow on login node and workers",
        _slow_jail,
        [(("--delay",), {"type": float, "default": 0.05, "help": "seconds added to each access"})],
    ),
    Fault("clear", "end all faults but drains and conditions of nodes", _clear),
]
