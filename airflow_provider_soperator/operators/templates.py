"""Find out if a template can be rendered in the triggerer.

It has the run of the DAG and its parameters, variables and connections. Asked for anything else, as for an XCom, it
does not answer, and the caller waits forever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

_VALUES = frozenset(
    {
        "conn", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "logical_date", "macros",
        "params", "run_id", "task_instance_key_str", "ts", "ts_nodash", "ts_nodash_with_tz", "var",
    }
)  # fmt: skip
_TASK_INSTANCE = frozenset({"ti", "task_instance"})
#: What a task instance has at hand.
_ATTRIBUTES = frozenset({"dag_id", "map_index", "run_id", "task_id", "try_number"})
_JINJA = Environment()


def need_a_worker(value: Any) -> bool:
    """True if a template, or one in a list or a dict, needs what only Airflow workers know.

    >>> need_a_worker({"env": {"RUN": "{{ run_id }} of {{ ti.task_id }}"}})
    False
    >>> need_a_worker(["echo", "{{ ti.xcom_pull('prepare') }}"])
    True
    """
    return any(map(_asks_for_more, _texts(value)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for one in value:
            yield from _texts(one)


def _asks_for_more(text: str) -> bool:
    if "{{" not in text and "{%" not in text:
        return False
    try:
        tree = _JINJA.parse(text)
    except TemplateSyntaxError:
        # The worker says what is wrong with it.
        return True
    if meta.find_undeclared_variables(tree) - _VALUES - _TASK_INSTANCE:
        return True
    names = [name for name in tree.find_all(nodes.Name) if name.name in _TASK_INSTANCE]
    harmless = [
        found.node
        for found in tree.find_all(nodes.Getattr)
        if isinstance(found.node, nodes.Name) and found.node.name in _TASK_INSTANCE and found.attr in _ATTRIBUTES
    ]
    return len(names) > len(harmless)
