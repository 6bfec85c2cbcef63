"""Source form of a call, for an interpreter of another version: functions as text, values as any Python pickles them.

Bytecode runs on one minor version of Python only; text and plain values are the same for all.
"""

from __future__ import annotations
import __future__

import dis
import inspect
import io
import pickle
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from airflow_provider_soperator.functions import remote

#: Protocol that all versions know for which there is a source form.
PROTOCOL = 5


class NoSourceForm(Exception):
    """A call cannot be sent as source. The message names what of it, and the remedy."""


@dataclass(frozen=True)
class SourceForm:
    """A call that any Python can make. ``remote`` reads it."""

    #: Functions of the DAG file that the call needs, as text.
    functions: list[dict[str, Any]]
    #: The called object, and for each function its defaults and all that its names stand for.
    values: bytes
    arguments: bytes


def source_form(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SourceForm:
    """The source form of a call."""
    here = modules_of(function)
    arguments = _Values(here)
    arguments.add("an argument", (tuple(args), dict(kwargs)))
    if arguments.functions:
        raise NoSourceForm(f"{_place(arguments.functions[0])} as an argument: name it in the called function instead")
    values = _Values(here)
    values.add("the function", function)
    functions = []
    # Values of a function may bring more functions.
    for found in values.functions:
        functions.append(text := _text(found))
        own = (found.__defaults__, found.__kwdefaults__, found.__dict__)
        values.add(f"a default or an attribute of {_place(found)}", own)
        for name in text["globals"]:
            values.add(f"the variable {name}", found.__globals__[name])
        for name, cell in zip(text["free"], found.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise NoSourceForm(f"the variable {name} of {_place(found)}, which has no value: set it") from None
            values.add(f"the variable {name}", value)
    return SourceForm(functions, values.data(), arguments.data())


def modules_of(function: Any) -> frozenset[str]:
    """The modules that the cluster cannot import: that of a function, and DAG files, as Airflow names them."""
    module = inspect.getmodule(function)
    own = {"__main__", module.__name__ if module else "__main__"}
    return frozenset(own | {name for name in [*sys.modules] if name.startswith("unusual_prefix_")})


#: Objects of which each process has its own, by module and name: the environment, generators with their state, and the
#: standard output and error.
_OF_THE_PROCESS = (
    ("os", "environ"),
    ("os", "environb"),
    ("random", "_inst"),
    ("numpy.random.mtrand", "_rand"),
    ("sys", "stdout"),
    ("sys", "stderr"),
)


def remade(value: Any, here: Container[str]) -> Any:
    """How to get there what each process has its own of, and a function of these modules with a cache.

    The one would go as it is here, the environment with its secrets; the other would be looked up there by its name.
    """
    for module, name in _OF_THE_PROCESS:
        if value is getattr(sys.modules.get(module), name, None):
            return getattr, (sys.modules[module], name)
    if not isinstance(value, _lru_cache_wrapper) or value.__module__ not in here:
        return NotImplemented
    return _Cache(*value.cache_parameters().values()), (value.__wrapped__,)


@dataclass(frozen=True)
class _Cache:
    """A decorator that a pickle has as a call."""

    size: Any
    typed: Any

    def __call__(self, function: Any) -> Any:
        return lru_cache(self.size, self.typed)(function)

    def __reduce__(self) -> Any:
        return lru_cache, (self.size, self.typed)


class _Values(pickle.Pickler):
    """Pickles values that any version can read. Functions of the DAG file become their number, modules their name."""

    def __init__(self, here: Container[str]) -> None:
        self._out = io.BytesIO()
        super().__init__(self._out, PROTOCOL)
        self._here = here
        self.functions: list[FunctionType] = []

    def add(self, what: str, value: Any) -> None:
        try:
            self.dump(value)
        except NoSourceForm:
            raise
        except Exception as error:
            raise NoSourceForm(f"{what} ({error}): make such objects inside the function") from None

    def data(self) -> bytes:
        return self._out.getvalue()

    def persistent_id(self, value: Any) -> int | str | None:
        if isinstance(value, ModuleType):
            return value.__name__
        if not isinstance(value, (FunctionType, type)) or self._importable(value):
            return None
        if isinstance(value, type):
            raise NoSourceForm(f"{_place(value)}: define it inside the function")
        # Equal functions are one.
        if value not in self.functions:
            self.functions.append(value)
        return self.functions.index(value)

    def reducer_override(self, value: Any) -> Any:
        return remade(value, self._here)

    def _importable(self, value: Any) -> bool:
        if value.__module__ in self._here:
            return False
        found: Any = sys.modules.get(value.__module__)
        for name in value.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is value


def _text(function: FunctionType) -> dict[str, Any]:
    """A function as text, with all that its text does not say."""
    code = function.__code__
    if function.__name__ == "<lambda>":
        raise NoSourceForm(f"{_place(function)}: write it with def")
    try:
        # That of the code itself: what a decorator has wrapped is a value of the wrapper.
        source = inspect.getsource(code)
    except OSError:
        raise NoSourceForm(f"{_place(function)}, whose source is in no file: define it in the DAG file") from None
    names = {name for one in _codes(code) for name in one.co_names}
    known = read_by(function)
    text = {
        "name": code.co_name,
        "qualname": function.__qualname__,
        "module": str(function.__globals__.get("__name__")),
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "source": source,
        "annotations": bool(code.co_flags & __future__.annotations.compiler_flag),
        "globals": known,
        "free": list(code.co_freevars),
        "imports": sorted(_submodules([function.__globals__[name] for name in known], names)),
    }
    try:
        remote.compiled(text, {})
    except (SyntaxError, ValueError) as error:
        raise NoSourceForm(f"{_place(function)}, whose source is not in its file ({error}): clear the task") from None
    return text


def read_by(function: FunctionType) -> list[str]:
    """The variables of its module that a function reads, also in the bodies of classes."""
    steps = (step for one in _codes(function.__code__) for step in dis.get_instructions(one))
    reads = {step.argval for step in steps if step.opname in _READS}
    # The body of a class has annotations of its own.
    reads -= {"__builtins__", "__annotations__"}
    return [name for name in sorted(reads) if name in function.__globals__]


#: Instructions that read a name of the module; in the body of a class the last two.
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def _codes(code: CodeType) -> Iterable[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _submodules(values: Iterable[Any], names: set[str]) -> Iterable[str]:
    """Modules that come into a name by their own import: ``concurrent.futures`` into ``concurrent``."""
    for value in values:
        if isinstance(value, ModuleType):
            prefix = f"{value.__name__}."
            for module in [*sys.modules]:
                if module.startswith(prefix) and names.issuperset(module.removeprefix(prefix).split(".")):
                    yield module


def _place(value: Any) -> str:
    """What an object is, for a message."""
    if isinstance(value, type):
        return f"the class {value.__qualname__} of the DAG file"
    line = value.__code__.co_firstlineno
    return f"a lambda (line {line})" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
