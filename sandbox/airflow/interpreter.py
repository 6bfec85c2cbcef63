"""A Python on a sandbox's root of the version that Airflow runs with: Debian's own there may be another."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

#: Where it is on the cluster.
HOME = Path("/opt/python")
PYTHON = str(HOME / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")

_NOT_NEEDED = shutil.ignore_patterns("site-packages", "dist-packages", "__pycache__", "test", "idlelib", "config-*")


def install(root: Path) -> str:
    """Copy this machine's interpreter and its standard library; the path of the copy on the cluster."""

    def inside(path: str | Path) -> Path:
        return root / Path(path).relative_to("/")

    # Never over one that may run.
    if inside(PYTHON).exists():
        return PYTHON
    # It finds the library by where it is itself.
    shutil.copytree(
        sysconfig.get_path("stdlib"), inside(HOME / "lib" / Path(PYTHON).name), ignore=_NOT_NEEDED, dirs_exist_ok=True
    )
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        library = sysconfig.get_config_var("INSTSONAME")
        shutil.copy2(Path(sysconfig.get_config_var("LIBDIR")) / library, inside("/usr/lib") / library)
    inside(PYTHON).parent.mkdir(exist_ok=True)
    shutil.copy2(Path(sys.executable).resolve(), inside(PYTHON))
    return PYTHON


def environment(root: Path) -> str:
    """An environment on the copy, with the packages of this one, which nodes see where they are; its Python.

    Nodes could not have Debian's Python where it is: they have their own there.
    """
    home = Path("/opt/airflow")
    folder = root / home.relative_to("/")
    python = f"{home}/bin/python"
    command = folder / "bin/airflow"
    if command.exists():
        return python
    # One whose making was interrupted.
    shutil.rmtree(folder, ignore_errors=True)
    library = folder / "lib" / Path(PYTHON).name
    library.mkdir(parents=True)
    (library / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    (folder / "pyvenv.cfg").write_text(f"home = {Path(install(root)).parent}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(PYTHON)
    command.write_text(f"#!{python}\nfrom airflow.__main__ import main\n\nmain()\n")
    command.chmod(0o755)
    return python
