"""Text filters of scripts make texts of texts, and do nothing else."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.pipelines.chains import filters


@pytest.mark.parametrize(
    "program",
    [
        "NR == 1 && $1 != 3 || $1 >= 2 {print $4}",
        '/a|b/ {exit} NF > 1 {gsub(/4/, "4"); print $4}',
        "{print $4; if ($1 > 5 || NF > 9) exit}",
        '{t = "print|>system"; printf "%s\\n", $4} NF > 9 {print "\\">", $1}',
    ],
)
def test_awk_that_only_prints_is_run(program: str) -> None:
    assert filters.filtered("awk", ["-F", " ", "-v", "x=a>b@c", "--", program], "1 2 3 4\n") == (0, "4\n")


@pytest.mark.parametrize(
    "command",
    [
        *("awk|{print $1 > 5}", 'awk|{print ";" > "made"}', "awk|{print /;/ | $0}", "awk|/x/ {print /}/ >> $1}"),
        *('awk|/"/ {print > "made"} /"/', 'awk|{print "\\"; print;" > "made"}', 'awk|{printf "a",\n1 | "sh"}'),
        *("awk|{print $1, # ;\n$2 > $1}", "awk|{print 1 |& $1}", 'awk|{"x" | getline}', 'awk|BEGIN {ARGV[1] = "x"}'),
        *("awk|{system($0)}", "gawk|@load 'x'", "awk|{print ENVIRON[0]}", "awk|-f|-", "awk|-F|-v|{system($0)}"),
        *(
            "awk|-vx=1|-i|inplace|1",
            "awk|--|1|-ex",
            "awk",
            "awk|-F",
            "not-there",
            "sed|w made",
            "sed|1e",
            "sed|-bi|p|x",
        ),
        *("sed|-nf-", "sed|--in-p|p|x", "sort|-uomade", "sort|--comp=sh", "uniq|-c|-|made", "uniq|--|-|made"),
    ],
)
def test_what_may_do_more_is_not_run(command: str) -> None:
    name, *words = command.split("|", 1) if command.startswith(("awk|{", "awk|/")) else command.split("|")
    with pytest.raises(filters.MayActError):
        filters.filtered(name, words, "x\n")


def test_what_comes_to_no_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(filters.EndlessError):
        filters.filtered("seq", ["99999999"], "")
    monkeypatch.setattr(filters, "SECONDS", 0.2)
    with pytest.raises(filters.EndlessError):
        filters.takes_text("awk", ["BEGIN {while (1) x = 1}"])


def test_files_are_not_read() -> None:
    for name, words in (("cat", [__file__]), ("grep", [f"-hf{__file__}"]), ("sort", [f"--files0-from={__file__}"])):
        assert filters.filtered(name, words, "x\n") is None
    assert filters.filtered("cut", ["-d/", "-f2"], "a/b\n") == (0, "b\n")
