"""Where the time of a run went: ``python -m tests.times run.xml`` of one with ``--junitxml=run.xml``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree

#: Lines of each table.
MOST = 40


def table(title: str, seconds: Iterable[tuple[str, float]]) -> str:
    """The seconds of each name, and of how many tests they are; those first that took longest."""
    took, tests = Counter[str](), Counter[str]()
    for name, time in seconds:
        took[name] += time
        tests[name] += 1
    lines = [f"{time:8.1f} {tests[name]:5d}  {name}" for name, time in took.most_common(MOST)]
    return "\n".join([f"{sum(took.values()):8.1f} {tests.total():5d}  {title}", *lines])


def main(file: str) -> None:
    cases = [
        (case.get("classname", ""), case.get("name", ""), float(case.get("time", 0)))
        for case in ElementTree.parse(file).iter("testcase")
    ]
    # Those of a lane end in its name.
    lanes = ((name.rpartition("@")[2] if "@" in name.rpartition("]")[2] else "none", time) for _, name, time in cases)
    print(table("seconds and tests by lane", lanes), end="\n\n")
    print(table("by module", ((module, time) for module, _, time in cases)), end="\n\n")
    print(table("by test", ((f"{module} {name}", time) for module, name, time in cases)))


if __name__ == "__main__":
    main(sys.argv[1])
