"""A call as source: it needs nothing of the file it comes from, and what it cannot carry is named."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import random
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_soperator.functions import remote
from airflow_provider_soperator.functions.source_form import NoSourceForm, source_form

OFFSET = 100
CALLED: list[str] = []
LOCK = threading.Lock()
counter = 0


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        CALLED.append(function.__name__)
        return function(*args)

    return wrapper


def helper(value: int) -> int:
    global counter
    counter += 1
    return value + OFFSET


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


@noted
def doubled(value: int) -> int:
    return 2 * value


@noted
def countdown(number: int) -> int:
    return number and countdown(number - 1)


@functools.lru_cache(maxsize=50)
def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def counted() -> int:
    counted.calls += 1  # type: ignore[attr-defined]
    return counted.calls  # type: ignore[attr-defined, no-any-return]


counted.calls = 5  # type: ignore[attr-defined]

TABLE = {"helper": helper, "of five": functools.partial(helper, 5)}


class Point:
    pass


def there(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of the call as another Python makes it."""
    form = source_form(function, args, kwargs)
    restored = remote.restored(json.loads(json.dumps(form.functions)), form.values)
    given, named = remote.Values(form.arguments, []).load()
    return restored(*given, **named)


def refused(function: Any, *args: Any) -> str:
    with pytest.raises(NoSourceForm) as error:
        source_form(function, args, {})
    return str(error.value)


def test_arguments_arrive() -> None:
    def called(first: int, /, *rest: int, key: int = OFFSET, **others: Any) -> Any:
        return first, rest, key, others

    when = datetime(2026, 11, 21, tzinfo=timezone.utc)
    assert there(called, 1, 2, at=when) == (1, (2,), 100, {"at": when})
    assert there(called, 1, key=5) == (1, (), 5, {})


def test_decorators_and_annotations_are_not_evaluated() -> None:
    def decorator(function: Any) -> Any:
        return function

    @decorator
    def called(value: NotKnownThere) -> AlsoNotKnown:  # type: ignore[name-defined]  # noqa: F821
        return value

    assert there(called, 1) == 1
    assert "decorator" not in source_form(called, (1,), {}).functions[0]["free"]


def test_a_class_with_annotations_does_not_bring_those_of_its_file() -> None:
    def called() -> int:
        class Config:
            rate: int = 3

        return Config.rate

    # Else it would need the modules of all types that they name.
    assert "__annotations__" not in source_form(called, (), {}).functions[0]["globals"]
    assert there(called) == 3


def test_functions_of_the_file_come_along_with_their_variables() -> None:
    def called() -> Any:
        return helper(1), TABLE["helper"](2), TABLE["of five"](), counter

    # The variables of the file are there once, and those here are not touched.
    assert there(called) == (101, 102, 105, 3)
    assert counter == 0


def test_functions_may_call_each_other() -> None:
    def factorial(number: int) -> int:
        return 1 if number < 2 else number * factorial(number - 1)

    assert there(even, 10)
    assert there(factorial, 5) == 120


def test_a_decorated_function_keeps_its_decorator() -> None:
    def called() -> Any:
        return doubled(4), doubled.__name__, CALLED

    assert there(called) == (8, "doubled", ["doubled"])
    assert CALLED == []


def test_a_decorated_function_calls_itself_as_it_is_decorated() -> None:
    def called() -> Any:
        return countdown(2), CALLED

    assert there(called) == (0, ["countdown"] * 3)


def test_a_function_keeps_its_cache() -> None:
    def called() -> Any:
        return fibonacci(30), fibonacci.cache_info().hits, fibonacci.cache_parameters()

    assert there(called) == (832040, 28, {"maxsize": 50, "typed": False})
    assert fibonacci.cache_info().misses == 0


def test_the_random_numbers_of_numpy_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    numpys: Any = ModuleType("numpy.random.mtrand")
    numpys._rand = random.Random()
    monkeypatch.setitem(sys.modules, numpys.__name__, numpys)
    rand = numpys._rand.random

    def called() -> Any:
        return rand.__self__ is numpys._rand

    assert there(called)


def test_a_function_keeps_its_attributes() -> None:
    def called() -> Any:
        return counted(), counted()

    assert there(called) == (6, 7)


def test_a_path_of_python_3_13_is_read_by_all() -> None:
    assert remote.Values(b"cpathlib._local\nPosixPath\n(V/data\ntR.", []).load() == Path("/data")


def test_variables_of_the_function_around_come_along() -> None:
    words, count = ["a", "b"], 0

    def called() -> Any:
        nonlocal count
        count += 1
        return [word * 2 for word in words], count

    assert there(called) == (["aa", "bb"], 1)
    assert count == 0


def test_modules_are_imported_with_their_submodules() -> None:
    def called() -> Any:
        return concurrent.futures.Future, json.dumps([1])

    assert there(called) == (concurrent.futures.Future, "[1]")
    assert "concurrent.futures" in source_form(called, (), {}).functions[0]["imports"]


def test_text_in_a_function_stays_as_it_is() -> None:
    def called() -> Any:
        text = """
at the margin
    and not"""
        return text

    assert there(called) == "\nat the margin\n    and not"


def test_the_lines_are_those_of_the_file() -> None:
    def called() -> None:
        raise LookupError

    with pytest.raises(LookupError) as error:
        there(called)
    last = error.traceback[-1]
    assert (str(last.path), last.lineno) == (__file__, called.__code__.co_firstlineno)


def test_what_is_no_source_is_named() -> None:
    def waits() -> None:
        LOCK.acquire()

    def makes() -> Any:
        return Point()

    def unset() -> Any:
        return later

    typed: dict[str, Any] = {}
    exec("def typed(): pass", typed)
    assert refused(lambda: 1).startswith("a lambda (line ")
    assert (
        refused(waits)
        == "the variable LOCK (cannot pickle '_thread.lock' object): make such objects inside the function"
    )
    assert refused(makes) == "the class Point of the DAG file: define it inside the function"
    assert refused(unset).endswith("unset, which has no value: set it")
    assert refused(typed["typed"]) == "the function typed, whose source is in no file: define it in the DAG file"
    assert refused(helper, Point()) == "the class Point of the DAG file: define it inside the function"
    assert refused(helper, helper) == "the function helper as an argument: name it in the called function instead"
    assert refused(helper, LOCK).startswith("an argument (cannot pickle")
    if unset is None:
        later = 1
