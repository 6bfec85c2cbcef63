"""Tables: whatever is in a field, each field comes out as it went in, and a broken table is never half read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.errors import UnreadableAnswer
from airflow_provider_soperator.slurm.requests.commands import Table, new_separator


def printed(table: Table, rows: list[tuple[bytes, ...]]) -> bytes:
    """What squeue, sinfo and sacct print: a separator after each field, a line break after each row."""
    separator = table.separator.encode()
    return b"".join(b"".join(field + separator for field in row) + b"\n" for row in rows)


hostile = st.sampled_from(
    [b"\n", b"|", b"~", b"\x1e", b"\n\n", b",", b"=", b"'", b'"', b"\xff\xfe", "é😀".encode(), b""]
)
texts = st.one_of(
    st.binary(max_size=40), st.lists(hostile, max_size=6).map(b"".join), st.text().map(lambda t: t.encode())
)


@given(st.integers(1, 6).flatmap(lambda width: st.lists(st.tuples(*[texts] * width), max_size=5)))
def test_any_bytes_come_out_as_they_went_in(rows: list[tuple[bytes, ...]]) -> None:
    table = Table(tuple(f"c{n}" for n in range(len(rows[0]) if rows else 3)))
    read = list(table.rows(printed(table, rows)))
    assert read == [tuple(field.decode(errors="backslashreplace") for field in row) for row in rows]


def test_a_long_field() -> None:
    table = Table(("a", "b"))
    long = b"x\n|~" * 25_000
    assert list(table.rows(printed(table, [(long, b"1"), (b"", long)]))) == [(long.decode(), "1"), ("", long.decode())]


@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=4), st.data())
def test_a_table_that_was_cut_is_refused(rows: list[tuple[bytes, ...]], data: st.DataObject) -> None:
    table = Table(("a", "b", "c"))
    whole = printed(table, rows)
    ends = {len(printed(table, rows[:n])) for n in range(len(rows) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in ends))
    with pytest.raises(UnreadableAnswer):
        list(table.rows(whole[:cut]))


@pytest.mark.parametrize("noise", [b"slurm: a warning\n", b"\n", b"a"])
def test_words_that_are_no_table_are_refused(noise: bytes) -> None:
    table = Table(("a", "b"))
    with pytest.raises(UnreadableAnswer):
        list(table.rows(printed(table, [(b"1", b"2")]) + noise))


def test_no_rows() -> None:
    assert list(Table(("a",)).rows(b"")) == []


def test_no_two_tables_share_a_separator_and_none_is_misread() -> None:
    separators = {new_separator() for _ in range(1000)}
    assert len(separators) == 1000
    for separator in separators:
        # These mean something in a format or a list of columns.
        assert not set(separator) & set("%,:. \"'\\")
        assert not separator[0].isdigit()
