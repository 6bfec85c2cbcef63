"""The cached root: a Debian with one Slurm version in it, built once, verified, and shared read-only by sandboxes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.errors import DOCKER, SandboxError
from sandbox.settings import SUITES, USER, home

PACKAGES = (
    "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client",
    "slurm-wlm-jwt-plugin", "munge", "mariadb-server", "openssh-server", "tini", "strace", "python3", "python3-venv",
    "procps",
)  # fmt: skip

#: Kept out of the root: nobody reads them there, and they are a third of its files.
EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")

#: A root that lacks one of these was not built to its end, or was changed since.
ESSENTIAL = (
    "usr/sbin/slurmctld-wlm", "usr/sbin/slurmd-wlm", "usr/sbin/slurmdbd", "usr/sbin/slurmrestd", "usr/bin/sbatch",
    "usr/sbin/munged", "usr/sbin/mariadbd", "usr/sbin/sshd", "usr/bin/tini", "usr/bin/python3",
)  # fmt: skip

#: Run with the new root as $1, once all packages are in.
CUSTOMIZE = (
    # "*" is a password that nothing matches; without one sshd would take the account for locked.
    f"chroot \"$1\" useradd --create-home --shell /bin/bash --uid 1001 --password '*' {USER}",
    # The root of the nodes is the jail, so its place inside a login or worker Pod is the root itself.
    'mkdir -p "$1/mnt" && ln -s / "$1/mnt/jail"',
    'mkdir -p "$1/opt/soperator-outputs/shared" && chmod 1777 "$1/opt/soperator-outputs/shared"',
)

#: Bytes that a build needs at its peak: the root and the packages it is made from.
DISK_NEEDED = 1_500_000_000

#: What the builder says, and how far it has come by then.
MILESTONES = (
    ("running apt-get update", 0.05, "reading the package lists"),
    ("downloading packages", 0.10, "downloading packages"),
    ("extracting archives", 0.35, "unpacking the base"),
    ("installing essential", 0.45, "installing the base"),
    ("installing remaining", 0.60, "installing Slurm, MariaDB and OpenSSH"),
    ("cleaning package lists", 0.95, "cleaning up"),
)

Progress = Callable[[float, str], None]


class RootCache:
    """The cached roots of this machine, one for each Slurm version."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home() / "roots"

    def path(self, version: str) -> Path:
        return self.folder / version

    def ready(self, version: str) -> bool:
        """The root is there, whole, and made by the recipe of this code."""
        try:
            stamp = json.loads(self._stamp(version).read_text())
        except (OSError, ValueError):
            return False
        return bool(stamp.get("recipe") == _recipe(version) and stamp.get("essential") == _sizes(self.path(version)))

    def ensure(self, version: str, progress: Progress) -> Path:
        """The root of a version, built now if it is not there. Two callers at once build it once."""
        if not self.ready(version):
            self._check_can_build()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked(version):
            if not self.ready(version):
                self._build(version, progress)
        return self.path(version)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stamp(self, version: str) -> Path:
        # Beside the root, not in it: the root is what the sandboxes see.
        return self.folder / f"{version}.json"

    @contextmanager
    def _locked(self, version: str) -> Iterator[None]:
        with (self.folder / f"{version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check_can_build(self) -> None:
        debian_mirror()
        if not shutil.which("mmdebstrap"):
            raise SandboxError("mmdebstrap is not installed", "run `apt-get install mmdebstrap`")
        there = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < DISK_NEEDED:
            raise SandboxError(
                f"{self.folder} has {free // 2**20} MiB free, a root needs {DISK_NEEDED // 2**20}",
                "free some space or set SOPERATOR_SANDBOX_HOME to a larger disk",
            )

    def _build(self, version: str, progress: Progress) -> None:
        mirror = debian_mirror()
        partial, debs = self.folder / f"{version}.partial", self.folder / f"{version}.debs"
        debs.mkdir(exist_ok=True)
        # What an interrupted build had downloaded is used, not fetched again; apt verifies it once more.
        self._salvage(partial, debs)
        shutil.rmtree(partial, ignore_errors=True)
        self._stamp(version).unlink(missing_ok=True)
        shutil.rmtree(self.path(version), ignore_errors=True)
        log = self.folder / f"{version}.log"
        try:
            _run_builder(_command(version, mirror, partial, debs), log, progress)
            self._verify(version, partial)
        except BaseException:
            self._salvage(partial, debs)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(self.path(version))
        stamp = {"recipe": _recipe(version), "essential": _sizes(self.path(version))}
        self._stamp(version).write_text(json.dumps(stamp, indent=2) + "\n")
        shutil.rmtree(debs)
        progress(1.0, "root ready")

    @staticmethod
    def _salvage(partial: Path, debs: Path) -> None:
        for deb in partial.glob("var/cache/apt/archives/*.deb"):
            deb.replace(debs / deb.name)

    @staticmethod
    def _verify(version: str, root: Path) -> None:
        if (found := release_in(root)) != version:
            raise SandboxError(
                f"Debian {SUITES[version]} now carries {f'Slurm {found}' if found else 'no Slurm'}, not {version}",
                f"choose another version than {version} with --slurm",
            )
        missing = [name for name, size in _sizes(root).items() if size is None]
        if missing:
            raise SandboxError(f"the new root lacks {', '.join(missing)}", "report it: Debian has moved these files")


def release_in(root: Path) -> str:
    """The release of the Slurm in a root, such as ``25.11``; empty if none runs there."""
    said = subprocess.run(["chroot", root, "slurmctld", "-V"], capture_output=True, text=True, check=False)
    found = re.match(r"slurm\S* (\d+\.\d+)\.", said.stdout)
    return found[1] if found else ""


def own_root(folder: str, release: str = "") -> dict[str, str]:
    """The settings of a sandbox on a root that its user has made; ``release`` is to be found there, if given."""
    root = Path(folder).absolute()
    found = release_in(root)
    if not found:
        raise SandboxError(f"no Slurm runs in {root}", "see that `chroot DIR slurmctld -V` prints a version")
    if release and release != found:
        raise SandboxError(f"{root} has Slurm {found}, not {release}", "leave --slurm out, or give another --root")
    return {"root": str(root), "slurm": found}


def debian_mirror() -> str:
    """The mirror that this machine's own apt uses: it is known to be reachable, and its owner chose it."""
    if not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        raise SandboxError("this is not a Debian machine", f"run {DOCKER} instead")
    wanted = ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not listed:
        raise SandboxError("apt knows of no Debian archive yet", "run `apt-get update` and try again")
    return listed[0]


def _recipe(version: str) -> str:
    text = "\n".join((SUITES[version], *PACKAGES, *EXCLUDED, *CUSTOMIZE))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sizes(root: Path) -> dict[str, int | None]:
    return {name: (root / name).stat().st_size if (root / name).exists() else None for name in ESSENTIAL}


def _command(version: str, mirror: str, target: Path, debs: Path) -> list[str]:
    command = [
        *_contained(), "mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory",
        f"--include={','.join(PACKAGES)}",
        # Debian testing's Release file may be past its date on a machine whose mirror lags.
        "--aptopt=Acquire::Check-Valid-Until \"false\"",
        "--aptopt=Acquire::Retries \"3\"",
        # The root can be built again at any time; waiting for the disk at each file buys nothing.
        "--dpkgopt=force-unsafe-io",
        "--skip=download/empty", "--skip=essential/unlink",
        "--setup-hook=mkdir -p \"$1/var/cache/apt/archives\"",
        f"--setup-hook=cp -a {debs}/. \"$1/var/cache/apt/archives/\"",
    ]  # fmt: skip
    command += [f"--customize-hook={line}" for line in CUSTOMIZE]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    return [*command, SUITES[version], str(target), f"deb {mirror} {SUITES[version]} main"]


def _contained() -> list[str]:
    """What to put before the builder, so that whatever way this process ends, all processes and mounts of the builder
    end with it: the next build must not find somebody at work in its folder.
    """
    namespaces = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    # `docker build` grants no right to make any, but there nothing outlives the step either.
    may = subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode == 0
    return ["setpriv", "--pdeathsig=KILL", *(namespaces if may else [])]


def _run_builder(command: list[str], log: Path, progress: Progress) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    with (
        log.open("w") as record,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as builder,
    ):
        assert builder.stdout is not None
        try:
            for line in builder.stdout:
                record.write(line)
                for words, share, label in MILESTONES:
                    if words in line:
                        progress(share, label)
        except BaseException:
            builder.kill()
            raise
    if builder.returncode:
        raise SandboxError(f"the root could not be built ({_reason(log)})", f"see {log} and run it again")


def _reason(log: Path) -> str:
    """The line of the builder's log that names the cause, or its last one."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("E:", "Err:", "W: Failed"))]
    network = (
        "Could not resolve",
        "Could not connect",
        "Temporary failure",
        "Unable to connect",
        "Connection failed",
    )
    if any(words in line for line in lines for words in network):
        return "the Debian archive cannot be reached"
    if any("No space left" in line for line in lines):
        return "the disk is full"
    return (told or lines or ["it said nothing"])[0]
