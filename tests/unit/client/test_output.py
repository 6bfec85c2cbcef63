"""What a job prints becomes lines, however it is cut on its way and whatever is in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.client.output import LONGEST_LINE, Console, Tails
from airflow_provider_soperator.slurm.files import FilePiece


def shown(*pieces: bytes) -> list[str]:
    console = Console()
    lines = [line for piece in pieces for line in console.feed(piece)]
    return lines + console.end()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntwo"], ["one", "two"]),
        ([b"a\n\nb\n"], ["a", "", "b"]),
        (["é\n".encode()[:1], "é\n".encode()[1:]], ["é"]),
        ([b"\xff\xfe\n"], ["��"]),
        ([b"one\r\ntwo\r", b"\n"], ["one", "two"]),
        ([b"\x1b[32mgreen\x1b[0m \x1b[2K\x1b[1Gx\x00y\x07\n"], ["\x1b[32mgreen\x1b[0m xy"]),
        ([b"\x1b]0;title\x07text\n"], ["text"]),
    ],
    ids=["no end", "blank", "cut letter", "no utf-8", "crlf", "escapes", "title"],
)
def test_lines(pieces: list[bytes], lines: list[str]) -> None:
    assert shown(*pieces) == lines


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"10%\r20%\r30%\rdone\nnext\n"], ["done", "next"]),
        ([b"10%\r20%", b"\r30%", b"\r100%\n", b"next"], ["10%", "20%", "100%", "next"]),
        ([b"\r10%", b"\r10%\r", b"\r10%\r\n", b"after\n"], ["10%", "after"]),
        ([b"50%\r", b"   \r", b"done\n"], ["50%", "   ", "done"]),
    ],
    ids=["in one piece", "bar", "the same again", "wiped"],
)
def test_a_line_that_is_overwritten_is_shown_once_for_each_look(pieces: list[bytes], lines: list[str]) -> None:
    assert shown(*pieces) == lines


@pytest.mark.parametrize("mark", ["::group::", "::endgroup::", ":::group::endgroup::group::", "::\0group::"])
def test_a_mark_by_which_airflows_page_folds_a_log_or_drops_an_event_is_plain_text(mark: str) -> None:
    [line] = shown(f"{mark}train\n".encode())
    assert "::group::" not in line
    assert "::endgroup::" not in line
    assert line.replace(" ", "") == mark.replace("\0", "") + "train"


def test_a_line_without_end_is_cut() -> None:
    [line] = shown(b"x" * (LONGEST_LINE + 7) + b"\n")
    assert line == "x" * LONGEST_LINE + " … (7 more)"


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)), st.data())
def test_where_it_is_cut_makes_no_difference(lines: list[str], data: st.DataObject) -> None:
    printed = "".join(f"{line}\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(printed)))))
    pieces = [printed[start:end] for start, end in zip([0, *cuts], [*cuts, len(printed)], strict=True)]
    assert shown(*pieces) == lines


def test_of_a_file_that_has_grown_at_its_end_the_last_bytes_are_read_or_said_to_be_missing() -> None:
    async def rest_of(written: bytes, most: int) -> list[str]:
        async def ask(request: Any) -> Any:
            return tuple(
                FilePiece(written[piece.offset : piece.offset + piece.length], len(written)) for piece in request.pieces
            )

        tail = Tails(ask).follow("fit.out", asyncio.Event())
        # Read, and not shown yet.
        tail.feed(written[:8], 8)
        return await tail.rest(most)

    assert asyncio.run(rest_of(b"step 1\n\nstep 2\n", 8)) == ["step 1", "", "step 2"]
    assert asyncio.run(rest_of(b"step 1\n\nstep 2\nstep 3\n", 8))[-1] == "(Not shown of fit.out: 6 more bytes)"


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (None, "there is no such file on the login node, which sees only the jail"),
        (500, "500 more bytes, which cannot be read"),
    ],
)
def test_a_file_that_is_not_there_or_cannot_be_read_is_told(size: int | None, note: str) -> None:
    async def rest() -> list[str]:
        return (
            await Tails(lambda request: asyncio.sleep(0, [FilePiece(b"", size)])).follow("/o", asyncio.Event()).rest(99)
        )

    assert asyncio.run(rest()) == [f"(Not shown of /o: {note})"]


def test_a_line_that_does_not_end_is_not_kept_for_ever() -> None:
    console, dots = Console(), b"." * 100_000
    assert [len(console.feed(dots)) for _ in range(3)] == [1, 0, 0]
    assert console.feed(b"\nnext\n") == ["next"]


def followed(*files: bytes | None) -> list[str]:
    """The lines of a file whose content is another at each look; None if there is none then."""

    async def lines() -> list[str]:
        async def ask(request: Any) -> Any:
            [piece], file = request.pieces, looks.pop(0) if len(looks) > 1 else looks[0]
            data = (file or b"")[piece.offset : piece.offset + piece.length]
            return [FilePiece(data, None if file is None else len(file))]

        looks = list(files)
        tails = Tails(ask)
        tail = tails.follow("/fit.out", asyncio.Event())
        found: list[str] = []
        for _ in files:
            await tails.look([tail], 1000)
            found += tail.lines()
        return found + await tail.rest(1000)

    return asyncio.run(lines())


def test_a_file_that_is_truncated_by_a_requeue_is_read_from_its_start() -> None:
    assert followed(b"begun\nloading ...", b"", b"beg", b"begun\ndone\n") == ["begun", "loading ...", "begun", "done"]
    assert followed(b"begun\n", b"", b"begun\ndone\n") == ["begun", "begun", "done"]


def requeued(*looks: bytes) -> list[str]:
    """The lines of a file that had a content before its job was requeued, and others at looks after that."""

    async def lines() -> list[str]:
        async def ask(request: Any) -> Any:
            return [FilePiece(looks[-1][piece.offset :], len(looks[-1])) for piece in request.pieces]

        tail = Tails(ask).follow("/fit.out", asyncio.Event())
        tail.feed(b"host w-0\nload\n", 14)
        tail.requeued(1)
        for file in looks:
            tail.feed(file[tail.offset :], len(file), cached=True)
        return (tail.lines() + await tail.rest(1000))[2:]

    return asyncio.run(lines())


def test_of_a_requeued_job_the_beginning_is_shown_even_if_the_file_has_grown_beyond_its_old_size() -> None:
    new = b"host w-3\nload\nstep 1\n"
    assert requeued(new) == requeued(new, new) == requeued(new[:3], new) == ["host w-3", "load", "step 1"]
    # Its node has not begun with it yet.
    assert requeued(b"host w-0\nload\n", new, new) == ["host w-3", "load", "step 1"]


def test_a_file_that_is_not_seen_for_once_is_not_shown_again() -> None:
    assert followed(None, b"one\n", None, b"one\ntwo\n") == ["one", "two"]


def test_nor_is_one_that_seems_shorter_once_as_another_login_node_still_has_its_older_size() -> None:
    assert followed(b"one\ntwo\n", b"one\n", b"one\ntwo\nthree\n") == ["one", "two", "three"]
    # At the end each size is of that moment.
    assert followed(b"one\ntwo\n", b"two\n")[-1] == "two"
