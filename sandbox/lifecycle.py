"""Brings a sandbox up, heals it, and takes it down without a trace."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from sandbox import access, daemons, preflight
from sandbox.compose import compose
from sandbox.control import Init, command_line, request
from sandbox.errors import SandboxError
from sandbox.rootfs import RootCache
from sandbox.settings import CLUSTER, EPHEMERAL_SET, Settings, home

Progress = Callable[[float, str], None]

#: The share of the bar that building a root takes when there is none yet.
ROOT_SHARE = 0.7


class Sandbox:
    """One sandbox, by its settings, whether it runs or not."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.paths = settings.paths
        self.init = Init(self.paths)

    @classmethod
    def existing(cls, name: str = "default") -> Sandbox:
        """The sandbox of this name, which must have been brought up before."""
        settings = Settings(name=name).paths.settings
        try:
            return cls(Settings.load(settings))
        except (OSError, ValueError) as error:
            start = command_line("up", name)
            raise SandboxError(f"there is no sandbox {name!r}", f"start it with `{start}`") from error

    def up(self, progress: Progress = lambda share, label: None) -> None:
        """Start the sandbox, or whatever of it does not run. Safe to repeat."""
        preflight.check_machine()
        cache, version = RootCache(), self.settings.slurm
        share = 0.0 if cache.ready(version) else ROOT_SHARE
        if self.settings.root:
            share, lower = 0.0, Path(self.settings.root)
        elif self.init.alive():
            # What it stands on stays as it is, also if this code would build it otherwise by now.
            share, lower = 0.0, cache.path(version)
        else:
            lower = cache.ensure(version, lambda part, label: progress(part * share, label))

        def report(part: float, label: str) -> None:
            progress(share + part * (1 - share), label)

        with self._locked():
            new = not self.paths.settings.exists()
            if not new:
                # Somebody else may have made it while this one waited for its turn.
                self.settings = Settings.load(self.paths.settings)
            try:
                self._up(lower, report, new)
            except SandboxError as error:
                if not new:
                    raise
                self._remove()
                # Its logs are gone with it, and no remedy may point to them.
                raise SandboxError(error.what, _remedy_without(self.paths.state, error.remedy)) from error
            except BaseException:
                if new:
                    self._remove()
                raise

    def _up(self, lower: Path, report: Progress, new: bool) -> None:
        if not self.init.alive():
            self._prepare(lower, report)
            self.init.boot(lower, self.settings.gpus, self.settings.visible)
        self.resume_frozen()
        self._start_all(report)
        self._wait_for_cloud(report)
        if new and not self.settings.bare:
            self._wait_for_workers(report)
            self._have_nodes_saved()
        access.write(self.settings)
        report(1.0, "ready")

    def down(self) -> None:
        """End every process of the sandbox and remove all its files. The cached root stays."""
        if not self.paths.state.exists():
            return
        with self._locked():
            self._remove()

    def _remove(self) -> None:
        """All that there is of the sandbox; the caller holds its lock."""
        self.init.kill()
        if self.paths.state.exists():
            shutil.rmtree(self.paths.state)
        self._lock_file().unlink(missing_ok=True)

    def _prepare(self, lower: Path, report: Progress) -> None:
        """The state folder of a sandbox that does not run: new, or what a crash left."""
        if not self.paths.settings.exists():
            # A range of ports is free until the settings that claim it are written: one sandbox at a time may choose.
            with (home() / ".ports.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._make(lower, report)
        else:
            preflight.check_ports(self.settings)

    def _make(self, lower: Path, report: Progress) -> None:
        """A state folder from nothing; the settings come last, so that what has them is whole."""
        shutil.rmtree(self.paths.state, ignore_errors=True)
        self.settings = preflight.with_free_ports(self.settings)
        report(0.05, "writing configuration")
        self.paths.state.mkdir(parents=True, mode=0o700)
        for folder in (self.paths.root, self.paths.upper, self.paths.work, self.paths.logs):
            folder.mkdir()
        self.paths.secrets.mkdir(mode=0o700)
        # mkdir honours the umask; the root of a Linux must be open to all its users.
        self.paths.upper.chmod(0o755)
        compose(self.settings, lower)
        if self.settings.bare:
            self.paths.operated.touch()
        self.settings.save()

    def resume_frozen(self) -> None:
        """What a fault had stopped goes on."""
        self.init.resume()

    def _start_all(self, report: Progress) -> None:
        processes = self.init.processes()
        running = {name for name, process in processes.items() if process["pid"]}
        is_operated = self.paths.operated.exists()
        # What the operator has started and not ended, if it is the operator that does so.
        waiting = [daemon for daemon in daemons.DAEMONS if not is_operated or daemon.name in processes]
        if "cloud" not in running:
            command = [sys.executable, "-m", "sandbox.cloud", str(self.paths.state)]
            self.init.start("cloud", command, env={"PYTHONPATH": str(Path(__file__).parent.parent)})
        for daemon in waiting:
            if not daemon.needs and daemon.name not in running:
                daemons.start(daemon, self.init, self.settings)
        for done, daemon in enumerate(waiting):
            report(0.1 + 0.7 * done / len(waiting), f"starting {daemon.name}")
            if daemon.needs and daemon.name not in running:
                daemons.start(daemon, self.init, self.settings)
            daemons.wait_ready(daemon, self.init, self.settings)
            if daemon.name == "slurmdbd" and not is_operated:
                self._register_cluster()

    def _register_cluster(self) -> None:
        """Tell accounting of this cluster and its people, once."""
        known = self.init.run("munged", ["sacctmgr", "-nP", "list", "cluster", "format=cluster"])
        if CLUSTER in known.stdout.split():
            return
        for words in daemons.accounts(CLUSTER):
            said = self.init.run("munged", ["sacctmgr", "-i", *words])
            if said.returncode:
                raise SandboxError(
                    f"`sacctmgr {' '.join(words)}` failed ({daemons.complaint(said.stderr or said.stdout)})",
                    f"see {self.paths.logs / 'slurmdbd.log'}",
                )

    def _wait_for_cloud(self, report: Progress) -> None:
        report(0.85, "starting the Kubernetes and Nebius doubles")
        self._wait_on_cloud("up", "the Kubernetes and Nebius doubles do not come up")

    def _wait_for_workers(self, report: Progress) -> None:
        """A new sandbox is ready with its first workers; one that is healed may have good reason to lack some."""
        report(0.9, "booting workers")
        self._wait_on_cloud("ready", "the first workers do not come up")

    def _have_nodes_saved(self) -> None:
        """Have slurmctld write down which nodes are on, as it does when one is changed: killed before, it forgets."""
        self.init.run("slurmctld", ["scontrol", "update", f"nodename={EPHEMERAL_SET}-0", "comment="])

    def _wait_on_cloud(self, question: str, otherwise: str) -> None:
        def answers() -> bool:
            try:
                return bool(request(self.paths.cloud_control, 5, do=question))
            except OSError:
                return False

        daemons.wait_for(
            answers,
            otherwise,
            lambda: not self.init.processes().get("cloud", {}).get("pid"),
            self.paths.logs / "cloud.log",
            daemons.PATIENCE + 2 * self.settings.vm_boot,
        )

    def _lock_file(self) -> Path:
        return home() / f"{self.settings.name}.lock"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        home().mkdir(parents=True, exist_ok=True)
        while True:
            with self._lock_file().open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Whoever had it may have removed the file, and then somebody else may hold another one by now.
                if self._is_lock_file(lock):
                    yield
                    return

    def _is_lock_file(self, lock: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(lock.fileno()), self._lock_file().stat())
        except FileNotFoundError:
            return False


def _remedy_without(state: Path, remedy: str) -> str:
    return "correct that and try again; nothing was left behind" if str(state) in remedy else remedy


def all_names() -> list[str]:
    """Every sandbox of this machine, running or not."""
    return sorted(folder.name for folder in (home() / "sandboxes").glob("*") if folder.is_dir())


def remove_remains(name: str) -> bool:
    """Take down a sandbox by its name alone, whatever state its folder is in; False if there is none."""
    sandbox = Sandbox(Settings(name=name))
    there = sandbox.paths.state.exists()
    sandbox.down()
    return there


def differences(running: Settings, given: dict[str, object]) -> list[str]:
    """The options that a sandbox was made with, where other values are given now."""
    stored = asdict(running)
    return [f"--{key.replace('_', '-')} {stored[key]}" for key, value in given.items() if stored[key] != value]
