"""Three dependent GPU jobs through a sandbox, one of them on a node that Slurm has to power up for it."""

from __future__ import annotations

import time

from rich.console import Console

from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox
from sandbox.settings import EPHEMERAL_SET, Settings

OUTPUTS = "/opt/soperator-outputs/shared/demo"

#: Each stage: its name, what it asks for, and what it runs.
STAGES = (
    ("prepare", "--gpus-per-node=1", 'echo "sharding the data set with GPU $CUDA_VISIBLE_DEVICES"; sleep 1'),
    (
        "train",
        # More nodes than are on: Slurm powers one up for it.
        "--nodes=2 --gpus-per-node={gpus}",
        'echo "training on $SLURM_JOB_NODELIST"; srun bash -c \'echo "rank $SLURM_PROCID of $SLURM_NTASKS:'
        " $(hostname), GPUs $CUDA_VISIBLE_DEVICES\"'",
    ),
    ("evaluate", "--gpus-per-node=1", 'echo "evaluating the checkpoint"'),
)


def check(settings: Settings) -> None:
    """Refuse a sandbox in which the stages could not all run, before anything is started."""
    if settings.workers < 2 or settings.block < 2 * settings.gpus:
        raise SandboxError(
            "the demonstration needs two workers and their GPUs", "use --workers 2 or more, and no --block"
        )


def run(sandbox: Sandbox, console: Console) -> None:
    """Submit the stages as one chain, follow them to their end, and print what they wrote."""
    console.print("\n[bold]The nodes before:[/] those with a ~ are powered down")
    console.print(_slurm(sandbox, "sinfo", "--partition=main", "--format=%9P %6D %6t %N"))
    console.print("[bold]Three jobs, each waits for the one before it:[/]")
    jobs = _submit(sandbox, console)
    _follow(sandbox, console, list(jobs.values()))
    console.print("\n[bold]What they wrote:[/]")
    for name, job in jobs.items():
        output = _slurm(sandbox, "cat", f"{OUTPUTS}/{name}-{job}.out")
        console.print(f"[cyan]{name}[/] (job {job})\n" + "".join(f"  {line}\n" for line in output.splitlines()), end="")
    console.print("\n[bold]What accounting has of them:[/]")
    columns = "--format=JobID%5,JobName%9,State%10,ExitCode%8,Elapsed%9,NodeList%13,AllocTRES%45"
    ids = ",".join(jobs.values())
    accounted = _slurm(sandbox, "sacct", "-X", f"--jobs={ids}", columns)
    console.print(accounted)
    if accounted.count("COMPLETED") != len(jobs):
        raise SandboxError("not all jobs completed", "see `python -m sandbox status`")
    console.print("The sandbox stays up: `python -m sandbox status` shows it, `python -m sandbox down` removes it.")


def _submit(sandbox: Sandbox, console: Console) -> dict[str, str]:
    _slurm(sandbox, "mkdir", "-p", OUTPUTS)
    jobs: dict[str, str] = {}
    for name, resources, script in STAGES:
        words = [
            f"--job-name={name}",
            f"--output={OUTPUTS}/%x-%j.out",
            "--constraint=platform-gpu",
            *resources.format(gpus=sandbox.settings.gpus).split(),
        ]
        if jobs:
            words.append(f"--dependency=afterok:{list(jobs.values())[-1]}")
        jobs[name] = _slurm(sandbox, "sbatch", "--parsable", *words, f"--wrap={script}").strip()
        console.print(f"  sbatch {' '.join([words[0], *words[3:]])} …  [dim]-> job {jobs[name]}[/]")
    return jobs


def _follow(sandbox: Sandbox, console: Console, jobs: list[str]) -> None:
    """Print each change of the jobs and of the nodes, until no job is left."""
    started, last = time.monotonic(), ""
    while time.monotonic() - started < 300:
        of_interest = f"--jobs={','.join(jobs)} --states=PD,CF,R,CG --sort=i"
        queue = _slurm(sandbox, "squeue", "--noheader", *of_interest.split(), "--format=%j %T %N")
        workers = f"--partition=main --nodes={EPHEMERAL_SET}-[0-1] --sort=N"
        nodes = _slurm(sandbox, "sinfo", "--noheader", *workers.split(), "--format=%N %T")
        now = f"{_line(queue) or 'no job is left':<62} nodes: {_line(nodes)}"
        if now != last:
            console.print(f"  {time.monotonic() - started:5.1f} s  {now}")
            last = now
        if not queue:
            return
        time.sleep(0.2)
    raise SandboxError("the jobs do not end", "see `python -m sandbox status`")


def _line(text: str) -> str:
    return ", ".join(line.strip() for line in text.splitlines())


def _slurm(sandbox: Sandbox, *command: str) -> str:
    said = sandbox.init.run("sshd", list(command))
    if said.returncode:
        raise SandboxError(
            f"`{command[0]}` failed on the login node ({(said.stderr or said.stdout).strip()})",
            "see `python -m sandbox status`",
        )
    return said.stdout
