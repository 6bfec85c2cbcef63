"""What holds for every transport that runs commands: bytes in, bytes out, and nothing mixed up on the way."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.files import FileError, Piece, ReadPieces, RemoveFiles, WritePiece
from airflow_provider_soperator.transports.transport_errors import OutputTooLarge
from tests.contract.transports import Run, Way
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.oldest_slurm

ODD_WORDS = (
    "", " ", "it's", '"', "$(touch /root/canary)", "`touch /root/canary`", "; touch /root/canary", "a\nb", "\\", "*",
    "~", "-n", "ünïcødé 日本", "\x7f\x01", "&& exit 3", "#", "!!", "%s\\n",
)  # fmt: skip


def test_words_arrive_as_they_are(shell_way: Way, cluster: Cluster) -> None:
    said = shell_way.ask(Run(("printf", "%s\\0", *ODD_WORDS)))
    assert said.stdout == b"".join(word.encode() + b"\0" for word in ODD_WORDS)
    assert cluster.try_run("test", "-e", "/root/canary").returncode == 1


def test_commands_begin_where_a_login_does(shell_way: Way) -> None:
    said = shell_way.ask(Run(("sh", "-c", 'echo "$PWD $HOME $USER $LOGNAME"')))
    assert said.stdout == b"/root /root root root\n"


def test_streams_and_status_are_kept_apart(shell_way: Way) -> None:
    said = shell_way.ask(Run(("sh", "-c", "echo out; echo err >&2; printf tail; exit 7")))
    assert (said.status, said.stdout, said.stderr) == (7, b"out\ntail", b"err\n")
    # The next command starts with a clean sheet.
    said = shell_way.ask(Run(("true",)))
    assert (said.status, said.stdout, said.stderr) == (0, b"", b"")


def test_any_byte_goes_in_and_comes_out(shell_way: Way) -> None:
    data = bytes(range(256)) * 4096
    assert shell_way.ask(Run(("cat",), stdin=data)).stdout == data
    said = shell_way.ask(Run(("sh", "-c", "cat >&2; head -c 3000000 /dev/zero"), stdin=data))
    assert said.stderr == data
    assert said.stdout == bytes(3_000_000)


def test_a_command_without_stdin_cannot_eat_what_comes_next(shell_way: Way) -> None:
    assert shell_way.ask(Run(("cat",))).stdout == b""
    assert shell_way.ask(Run(("echo", "still here"))).stdout == b"still here\n"


def test_a_hundred_kilobyte_word(shell_way: Way) -> None:
    word = "x'y" * 35_000
    assert shell_way.ask(Run(("printf", "%s", word))).stdout == word.encode()


def test_a_flood_of_output_is_refused(shell_way: Way) -> None:
    with pytest.raises(OutputTooLarge, match="more than 1000000 bytes"):
        shell_way.ask(Run(("yes",), max_output=1_000_000))
    assert shell_way.ask(Run(("echo", "on"))).stdout == b"on\n"


def test_commands_at_once_do_not_mix(shell_way: Way) -> None:
    requests = [Run(("sh", "-c", f"sleep 0.0{number % 7}; echo {number}; echo {number} >&2")) for number in range(40)]
    said = shell_way.ask_at_once(*requests)
    assert [(one.stdout, one.stderr) for one in said] == [(f"{n}\n".encode(),) * 2 for n in range(40)]


def test_files_are_written_and_read_in_pieces(shell_way: Way, cluster: Cluster) -> None:
    folder = "/root/a folder; with 'quotes' ] $(touch canary) * \\"
    path, data = f"{folder}/données", bytes(range(256)) * 1000
    cluster.run("mkdir", folder)
    shell_way.ask(WritePiece(path, 0, data[:100_000], 0o440))
    shell_way.ask(WritePiece(path, 100_000, data[100_000:], 0o640))
    assert cluster.run("stat", "-c", "%a %s", path).split() == ["640", "256000"]
    start, end, past, missing = shell_way.ask(
        ReadPieces((Piece(path, 0, 10), Piece(path, 255_990, 100), Piece(path, 999_999), Piece("/root/nothing")))
    )
    assert (start.data, start.size) == (data[:10], 256_000)
    assert (end.data, end.size) == (data[-10:], 256_000)
    assert (past.data, past.size) == (b"", 256_000)
    assert (missing.data, missing.size) == (b"", None)
    shell_way.ask(RemoveFiles((path, "/root/nothing")))
    assert cluster.run("ls", folder) == ""
    shell_way.ask(RemoveFiles((folder,)))


def test_an_empty_file_can_be_written(shell_way: Way) -> None:
    shell_way.ask(WritePiece("/root/empty", 0, b"", 0o644))
    [piece] = shell_way.ask(ReadPieces((Piece("/root/empty"),)))
    assert (piece.data, piece.size) == (b"", 0)


def test_a_file_that_cannot_be_written_says_why(shell_way: Way) -> None:
    with pytest.raises(FileError, match="No such file or directory"):
        shell_way.ask(WritePiece("/root/no/such/folder/file", 0, b"x", 0o644))
    with pytest.raises(FileError, match="not an absolute path"):
        shell_way.ask(WritePiece("relative", 0, b"x", 0o644))
