"""The jail, the root that all nodes share, and what is left of it when its image is restored over it."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sandbox.rootfs import RootCache
from sandbox.settings import Settings

#: What is the jail's alone. In the sandbox the same root is that of the controller and accounting, too, whose own files
#: are elsewhere on a cluster.
PARTS = ("home", "root", "opt", "srv", "usr/local", "etc/passwd", "etc/shadow", "etc/group", "etc/gshadow")
#: Below them: Soperator's own, and the keys of root, which the login node has from the SlurmCluster.
KEPT = ("opt/soperator", "root/.ssh")
#: Folders that the image of a cluster has; here they are not in the cached root.
MADE = {"opt/soperator-outputs": 0o1777, "opt/soperator-outputs/slurm_jobs": 0o1777}


class Jail:
    """A sandbox's root, and the image that it was made from."""

    def __init__(self, root: Path, image: Path) -> None:
        self._root, self._image = root, image

    @classmethod
    def of(cls, settings: Settings) -> Jail:
        return cls(settings.paths.root, Path(settings.root) if settings.root else RootCache().path(settings.slurm))

    def overwrite(self) -> None:
        """As ``restic restore --overwrite always --delete``: what is not in the image goes, the rest is as in it."""
        for part in PARTS:
            self._restore(part)
        for folder, mode in MADE.items():
            path = self._root / folder
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)

    def _restore(self, name: str) -> None:
        here, image = self._root / name, self._image / name
        if name in KEPT:
            return
        if _is_folder(here) and (_is_folder(image) or any(kept.startswith(f"{name}/") for kept in KEPT)):
            for child in sorted(_children(here) | _children(image)):
                self._restore(f"{name}/{child}")
            return
        if here.is_file() and image.is_file() and filecmp.cmp(here, image, shallow=False):
            return
        _remove(here)
        if os.path.lexists(image):
            _copy(image, here)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _children(folder: Path) -> set[str]:
    return {child.name for child in folder.iterdir()} if _is_folder(folder) else set()


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    if _is_folder(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)
    for path in (target, *_below(target)):
        original = (source / path.relative_to(target)).lstat()
        os.chown(path, original.st_uid, original.st_gid, follow_symlinks=False)


def _below(path: Path) -> Iterator[Path]:
    return path.rglob("*") if _is_folder(path) else iter(())
