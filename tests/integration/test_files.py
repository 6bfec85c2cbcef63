"""Files and folders on their way to the cluster and back: whole or not at all, whatever happens on the way."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.client import file_copies
from airflow_provider_soperator.client.file_copies import LocalFileError
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.files import FileError, PlaceFiles, ReadPieces, WritePiece
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from tests.integration.cluster import Cluster
from tests.integration.connections import WAYS, Connections

ODD = "a 'b' $(touch x) \\ *\n日本"
#: More than goes in one piece, and not a multiple of it.
LARGE = 3_333_333


@pytest.fixture
def slurm(connections: Connections) -> Iterator[SlurmClient]:
    with connections.login_node().client() as slurm:
        yield slurm


@pytest.fixture
def there(cluster: Cluster) -> Iterator[str]:
    """A folder of the cluster's."""
    path = "/root/files"
    cluster.run("mkdir", path)
    yield path
    cluster.run("rm", "-rf", path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With all that a folder can have in it."""
    folder = tmp_path / "project"
    (folder / "src" / ODD).mkdir(parents=True)
    (folder / "empty").mkdir(mode=0o750)
    (folder / "src" / ODD / "main.py").write_text("print('hello')\n")
    (folder / "nothing").touch()
    (folder / "-large").write_bytes(os.urandom(LARGE))
    for number in range(600):
        (folder / "src" / f"{number}.txt").write_text(f"{number}\n" * 100)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    (folder / "read-only").write_text("x")
    (folder / "read-only").chmod(0o440)
    (folder / "latest").symlink_to("src/1.txt")
    return folder


def content(folder: Path) -> dict[str, tuple[int, object]]:
    """All that is in a folder: each path with its mode and what it holds."""
    found: dict[str, tuple[int, object]] = {}
    for path in folder.rglob("*"):
        held: object = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (0 if path.is_symlink() else path.stat().st_mode, held)
    return found


def listed(cluster: Cluster, path: str) -> list[str]:
    return sorted(cluster.run("ls", "-A", path).splitlines())


@pytest.mark.parametrize("way", ["own-fields", "soperator_kubernetes", "soperator_rest"])
def test_a_folder_goes_there_and_back(
    way: str, connections: Connections, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    with WAYS[way](connections).client() as slurm:
        sent = slurm.upload(folder, f"{there}/deep/er/project")
        assert (sent.files, sent.new) == (605, 605)
        assert sent.size > LARGE
        again = slurm.upload(folder, f"{there}/deep/er/project")
        assert (again.new, again.size) == (0, 0)
        brought = slurm.download(f"{there}/deep/er/project", tmp_path / "back" / "again")
        assert brought == sent
        assert slurm.download(f"{there}/deep/er/project", tmp_path / "back" / "again").new == 0
    assert content(tmp_path / "back" / "again") == content(folder)
    assert os.listdir(tmp_path / "back") == ["again"]
    assert listed(cluster, f"{there}/deep/er") == ["project"]
    assert cluster.run("stat", "-c", "%a %U", f"{there}/deep/er/project/run.sh").split() == ["750", "root"]


@pytest.mark.parametrize("size", [0, 1, LARGE])
@pytest.mark.parametrize("name", ["file", ODD])
def test_a_file_goes_there_and_back(size: int, name: str, slurm: SlurmClient, there: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(size))
    file.chmod(0o604)
    assert slurm.upload(file, f"{there}/{name}").new == 1
    assert slurm.upload(file, f"{there}/{name}").new == 0
    assert slurm.download(f"{there}/{name}", tmp_path / "back").size == size
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert (tmp_path / "back").stat().st_mode == file.stat().st_mode


def test_only_what_has_changed_is_sent_and_the_rest_of_the_folder_stays(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str
) -> None:
    slurm.upload(folder, f"{there}/project")
    cluster.run("sh", "-c", f"echo of a job >{there}/project/src/result; echo damaged >{there}/project/src/7.txt")
    cluster.run("chmod", "711", f"{there}/project")
    (folder / "src" / "5.txt").write_text("new")
    (folder / "run.sh").chmod(0o755)
    (folder / "nothing").unlink()
    sent = slurm.upload(folder, f"{there}/project")
    assert (sent.files, sent.new) == (604, 3)
    shown = 'cd "$1"; cat src/5.txt src/result; head -n 1 src/7.txt; stat -c %a run.sh .; ls -A'
    said = cluster.run("sh", "-c", shown, "show", f"{there}/project").split()
    assert said[:7] == ["newof", "a", "job", "7", "755", "711", "-large"]
    # What is gone here may be somebody else's there.
    assert "nothing" in said


@pytest.mark.soak
def test_many_may_send_the_same_at_the_same_time(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    for text in ("new\n", "newer\n"):
        (folder / "src" / "5.txt").write_text(text)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: slurm.upload(folder, f"{there}/project"), range(4)))
        assert listed(cluster, there) == ["project"]
        slurm.download(f"{there}/project", tmp_path / "back")
        assert content(tmp_path / "back") == content(folder)


def test_only_what_has_changed_is_fetched(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    slurm.upload(folder, f"{there}/project")
    back = tmp_path / "back"
    slurm.download(f"{there}/project", back)
    (back / "mine").write_text("mine")
    cluster.run("sh", "-c", f"echo new >{there}/project/src/5.txt; mkdir -p {there}/project/more/inner")
    brought = slurm.download(f"{there}/project", back)
    assert (brought.files, brought.new, brought.size) == (605, 1, 4)
    assert (back / "src" / "5.txt").read_text() == "new\n"
    assert (back / "more" / "inner").is_dir()
    assert (back / "mine").read_text() == "mine"


def cutting(slurm: SlurmClient, cluster: Cluster, every: int) -> Callable[[Request[Any]], Any]:
    """Asks as the client does, with a connection that is cut while some of the questions are under way."""
    count = 0

    def ask(request: Request[Any]) -> Any:
        nonlocal count
        count += 1
        if count % every:
            return slurm.ask(request)
        cut = threading.Timer(0.002 * (count % 7), cluster.fault, ("login-cut",))
        cut.start()
        try:
            return slurm.ask(request)
        finally:
            cut.join()

    return ask


@pytest.mark.soak
def test_a_connection_that_is_cut_again_and_again(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    (folder / "larger").write_bytes(os.urandom(12_000_000))
    ask = cutting(slurm, cluster, every=4)
    assert run_steps(file_copies.send(folder, f"{there}/project", "tag"), ask).new == 606
    assert listed(cluster, there) == ["project"]
    assert run_steps(file_copies.bring(f"{there}/project", tmp_path / "back", "tag"), ask).new == 606
    assert content(tmp_path / "back") == content(folder)


def test_nothing_is_seen_at_the_place_before_all_of_it_is_there(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    seen: list[object] = []

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, (WritePiece, PlaceFiles)):
            seen.append(cluster.try_run("ls", f"{there}/project").returncode)
        if isinstance(request, ReadPieces):
            seen.append((tmp_path / "back").exists())
        return slurm.ask(request)

    run_steps(file_copies.send(folder, f"{there}/project", "tag"), ask)
    run_steps(file_copies.bring(f"{there}/project", tmp_path / "back", "tag"), ask)
    assert len(seen) > 4
    assert set(seen) == {2, False}


def test_what_a_killed_try_has_left_is_removed_by_the_next(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str
) -> None:
    class Killed(BaseException):
        pass

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, PlaceFiles):
            raise Killed
        return slurm.ask(request)

    with pytest.raises(Killed):
        run_steps(file_copies.send(folder, f"{there}/project", "tag"), ask)
    [left] = listed(cluster, there)
    assert left.startswith(".incoming-")
    slurm.upload(folder, f"{there}/project", tag="tag")
    assert listed(cluster, there) == ["project"]


@pytest.mark.parametrize("name", ["project", "project/-large"])
def test_a_full_disk(name: str, slurm: SlurmClient, cluster: Cluster, folder: Path, there: str) -> None:
    cluster.run("mount", "-t", "tmpfs", "-o", "size=2m", "small", there)
    try:
        with pytest.raises(FileError, match=r"No space left on device.*: free space there"):
            slurm.upload(folder.parent / name, f"{there}/copy")
        assert listed(cluster, there) == []
    finally:
        cluster.run("umount", there)


def test_what_is_there_stays_where_a_new_one_does_not_fit(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str
) -> None:
    cluster.run("mount", "-t", "tmpfs", "-o", "size=2m", "small", there)
    try:
        cluster.run("sh", "-c", f"echo before >{there}/copy")
        with pytest.raises(FileError, match="No space left on device"):
            slurm.upload(folder / "-large", f"{there}/copy")
        assert cluster.run("cat", f"{there}/copy") == "before\n"
    finally:
        cluster.run("umount", there)


def test_a_folder_of_somebody_else(connections: Connections, folder: Path, cluster: Cluster) -> None:
    with connections.login_node(login="alice").client() as slurm:
        with pytest.raises(FileError, match=r"Permission denied.*the user of the connection"):
            slurm.upload(folder, "/root/of-alice")
        slurm.upload(folder, "/home/alice/project")
        # Her home keeps its mode, without which she could not log in.
        before = cluster.run("stat", "-c", "%a", "/home/alice")
        folder.chmod(0o777)
        slurm.upload(folder, "/home/alice")
        assert cluster.run("stat", "-c", "%a", "/home/alice") == before
        assert cluster.run("stat", "-c", "%U", "/home/alice/src/1.txt") == "alice\n"
        cluster.run("sh", "-c", "cd /home/alice; rm -r project src empty -- nothing -large run.sh read-only latest")
        cluster.run("sh", "-c", "echo hidden >/home/alice/hidden; chmod 0 /home/alice/hidden")
        try:
            with pytest.raises(FileError, match="/home/alice/hidden: Permission denied: check its owner"):
                slurm.download("/home/alice/hidden", folder / "hidden")
        finally:
            cluster.run("rm", "/home/alice/hidden")
        assert not (folder / "hidden").exists()


def test_what_is_not_there_is_named(slurm: SlurmClient, there: str, tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match=f"there is no {tmp_path}/model.pt"):
        slurm.upload(tmp_path / "model.pt", f"{there}/model.pt")
    with pytest.raises(FileError, match=f"{there}/model.pt.*No such file or directory"):
        slurm.download(f"{there}/model.pt", tmp_path / "model.pt")
    assert os.listdir(tmp_path) == []


def test_a_file_does_not_take_the_place_of_a_folder_nor_a_folder_that_of_a_file(
    slurm: SlurmClient, cluster: Cluster, folder: Path, there: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=f"writing to {there}: it is a folder; end its name with /"):
        slurm.upload(folder / "run.sh", there)
    slurm.upload(folder / "run.sh", f"{there}/file")
    with pytest.raises(FileError, match="it is a file"):
        slurm.upload(folder, f"{there}/file")
    assert listed(cluster, there) == ["file"]
    with pytest.raises(LocalFileError, match="is a folder"):
        slurm.download(f"{there}/file", tmp_path)
    with pytest.raises(LocalFileError, match="is a file"):
        slurm.download(there, folder / "run.sh")
    assert os.listdir(tmp_path) == ["project"]


def test_a_file_that_is_written_to_while_it_is_read(
    slurm: SlurmClient, cluster: Cluster, there: str, tmp_path: Path
) -> None:
    cluster.run("sh", "-c", f"head -c 100 /dev/zero >{there}/checkpoint")

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, ReadPieces):
            cluster.run("sh", "-c", f"echo changed >{there}/checkpoint")
        return slurm.ask(request)

    with pytest.raises(FileError, match="checkpoint changed while it was read"):
        run_steps(file_copies.bring(f"{there}/checkpoint", tmp_path / "checkpoint", "tag"), ask)
    assert os.listdir(tmp_path) == []


def test_links_that_lead_out_of_a_folder_are_not_fetched(
    slurm: SlurmClient, cluster: Cluster, there: str, tmp_path: Path
) -> None:
    cluster.run("sh", "-c", f"cd {there}; ln -s /etc/passwd a; ln -s ../.. b; mkdir c; ln -s ../d c/d; echo d >d")
    brought = slurm.download(there, tmp_path / "back")
    assert brought.left_out == 2
    assert "2 links that lead out of it were left out" in str(brought)
    assert sorted(content(tmp_path / "back")) == ["c", "c/d", "d"]
    # A link that is named itself is followed.
    cluster.run("ln", "-s", "d", f"{there}/e")
    slurm.download(f"{there}/e", tmp_path / "e")
    assert (tmp_path / "e").read_text() == "d\n"
    assert not (tmp_path / "e").is_symlink()


def test_a_large_file_does_not_fill_the_memory(slurm: SlurmClient, there: str, tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as large:
        large.truncate(32 << 20)
    tracemalloc.start()
    try:
        slurm.upload(tmp_path / "large", f"{there}/large")
        slurm.download(f"{there}/large", tmp_path / "back")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    assert (tmp_path / "back").stat().st_size == 32 << 20
