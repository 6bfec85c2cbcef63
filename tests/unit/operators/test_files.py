"""Where files of a job go on the machine that runs its task."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.client.file_copies import Copied, LocalFileError
from airflow_provider_soperator.operators import files
from airflow_provider_soperator.operators.files import JobFiles
from airflow_provider_soperator.slurm.files import Match
from airflow_provider_soperator.slurm.requests import Request


class Cluster:
    """A connection, and its client: what patterns match, and what was downloaded to where."""

    def __init__(self, *matches: str) -> None:
        self.matches = matches
        self.downloaded: list[tuple[str, Path]] = []

    @contextmanager
    def client(self) -> Iterator[Cluster]:
        yield self

    def ask(self, request: Request[Any]) -> Any:
        assert isinstance(request, Match)
        return self.matches

    def download(self, path: str, local: Path) -> Copied:
        self.downloaded.append((path, local))
        return Copied(1, 1, 1)


def download(cluster: Cluster, pair: tuple[str, str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    JobFiles("east", here, "owner", logging.getLogger(__name__)).download([pair], "/work")


def test_matches_keep_their_folders_below_the_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    # The path that is named may be a link.
    (tmp_path / "got").symlink_to("disk")
    cluster = Cluster("/work/plots/", "/work/plots/a/1.png", "/work/plots/..2.png")
    download(cluster, ("plots/**", "got"), tmp_path, monkeypatch)
    assert [local for _, local in cluster.downloaded] == [
        tmp_path / "got", tmp_path / "got" / "a" / "1.png", tmp_path / "got" / "..2.png"
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/work/evil.py", "/work/plots/../evil.py", "/etc/evil.py", "/work/plots/out/evil.py"])
def test_a_match_that_would_go_elsewhere_is_not_downloaded(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "out").symlink_to("..")
    cluster = Cluster(path)
    with pytest.raises(LocalFileError, match=f"{path} would be downloaded to {tmp_path}/.*evil.py, out of "):
        download(cluster, ("plots/**", "got"), tmp_path, monkeypatch)
    assert not cluster.downloaded
