"""What is left of the jail when its image is restored over it."""

from __future__ import annotations

from pathlib import Path

from sandbox.cloud.jail import Jail


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_what_is_not_in_the_image_goes(tmp_path: Path) -> None:
    root, image = tmp_path / "root", tmp_path / "image"
    write(
        image, etc__passwd="root alice", home__alice__bashrc="image", opt__tool="image", usr__local__bin__known="image"
    )
    write(root, etc__passwd="root alice bob", etc__hosts="mine", var__spool__slurmctld__job_state="jobs")
    write(root, home__alice__bashrc="changed", home__alice__data="hers", home__bob__data="his", opt__models__one="big")
    write(root, opt__soperator__bin__power="ours", root__ssh__authorized="key", root__results="mine")
    (root / "root/ssh").rename(root / "root/.ssh")
    (root / "home/link").symlink_to("/etc")
    (root / "usr").mkdir()
    Jail(root, image).overwrite()
    left = {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}
    assert left == {
        "etc/passwd": "root alice",
        "home/alice/bashrc": "image",
        "opt/tool": "image",
        "usr/local/bin/known": "image",
        # Not of the jail, but of the machine's other Pods, or Soperator's own.
        "etc/hosts": "mine",
        "var/spool/slurmctld/job_state": "jobs",
        "opt/soperator/bin/power": "ours",
        "root/.ssh/authorized": "key",
    }
    assert not (root / "home/link").is_symlink()
    assert (root / "opt/soperator-outputs/slurm_jobs").is_dir()
