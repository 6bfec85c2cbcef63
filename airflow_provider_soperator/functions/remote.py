"""Calls a function on the cluster: this file is the ``__main__`` of a zip archive that also contains the function.

It runs on Python 3.8 and newer, with nothing installed. Older ones must be able to report that.
"""

import __future__

import ast
import contextlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
import types
import uuid
import zipfile
import zlib
from typing import Any, Dict, List, NoReturn

#: Exit code for errors that a retry cannot fix; EX_CONFIG in sysexits.h.
UNFIT = 78

#: Seconds after which whoever builds an environment touches its lock again.
BEAT = 15
#: Seconds after which a lock that nobody has touched is void. NFS may show a change after 60 s.
STALE = 180


def main(archive: str, result_path: str, most: int) -> None:
    if sys.version_info < (3, 8):
        fail(f"this is Python {version()} ({sys.executable}), but 3.8 or newer is needed: set python= or venv=")
    with zipfile.ZipFile(archive) as packed:
        members = {name: packed.read(name) for name in packed.namelist() if name.endswith((".json", ".pickle"))}
        before = min(one.header_offset for one in packed.infolist())
    with open(archive, "rb") as whole:
        arguments = zlib.decompress(whole.read(before))
    about = json.loads(members["about.json"].decode())
    same = version() == about["python"]
    if not same and about["refused"]:
        fail(
            f"this is Python {version()} ({sys.executable}), and Airflow runs on {about['python']}: the function would "
            f"have to be sent as source, which cannot contain {about['refused']}; or set an interpreter of Python "
            f"{about['python']} (python=, venv=)"
        )
    if about["environment"]:
        enter(environment(os.path.dirname(archive), **about["environment"]))
    if sys.prefix != sys.base_prefix:
        # As its activation script does; in a container, the PATH of the image has replaced that of the job.
        programs = os.path.join(sys.prefix, "bin")
        os.environ.update(VIRTUAL_ENV=sys.prefix, PATH=programs + os.pathsep + os.environ.get("PATH", os.defpath))
    for name, text in about["sources"].items():
        # So that a traceback can show lines of a file that does not exist here.
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    # Now, because the archive may be gone when a long call ends.
    dumps = importlib.import_module("cloudpickle").dumps if same else pickle.dumps
    try:
        function, args, kwargs = call(members, arguments, about, same)
    except ImportError as error:
        fail(f"the function needs a module that is not installed for {sys.executable}: {error}")
    except SyntaxError as error:
        fail(
            f"this is Python {version()} ({sys.executable}), and cannot read the function from Airflow's Python "
            f"{about['python']}: {error}; set a newer interpreter (python=, venv=), or write the function for this one"
        )
    stand_in(about["modules"], function)
    try:
        result = function(*args, **kwargs)
        if type(result).__name__ == "coroutine":
            # Airflow's @task takes coroutine functions, too.
            result = importlib.import_module("asyncio").run(result)
    except Exception:
        kind, raised, trace = sys.exc_info()
        # The first frame is this file.
        traceback.print_exception(kind, raised, trace and trace.tb_next)
        sys.exit(1)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        keep(result, result_path, most, dumps)


def version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


# ---------------------------------------------------------------------------------------------------------- the call


def call(members: Dict[str, bytes], arguments: bytes, about: Dict[str, Any], same: bool) -> Any:
    """The function and its arguments."""
    if about["refused"]:
        both = Values(members["function.pickle"] + arguments, [])
        return (both.load(), *both.load())
    if same:
        function = pickle.loads(members["function.pickle"])
    else:
        function = restored(about["functions"], members["values.pickle"])
    return (function, *Values(arguments, []).load())


class Values(pickle.Unpickler):
    """Reads what another Python has pickled: ``source_form``, or a function as its result."""

    def __init__(self, data: bytes, functions: List[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.functions = functions

    def find_class(self, module: str, name: str) -> Any:
        # Python 3.13 has its paths in a module that no other version knows.
        return super().find_class("pathlib" if module == "pathlib._local" else module, name)

    def persistent_load(self, pid: Any) -> Any:
        return self.functions[pid] if isinstance(pid, int) else importlib.import_module(pid)


def stand_in(names: List[str], function: Any) -> None:
    """Put modules in place of those that only Airflow has: dataclasses look for that of a class, and pickle in it."""
    space = getattr(inspect.unwrap(function), "__globals__", {})

    def found(name: str) -> Any:
        caller = sys._getframe(1)
        callers = [str(frame.f_globals.get("__name__")) for frame in (caller, caller.f_back) if frame]
        # These, and the copies of them in joblib and Ray, send by value what they do not find. Else they would name the
        # module to processes that have none.
        if name not in space or any("cloudpickle" in one or "dill" in one for one in callers):
            raise AttributeError(name)
        return space[name]

    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            module: Any = types.ModuleType(name)
            if space.get("__name__") == name:
                module.__getattr__ = found
            sys.modules[name] = module


def restored(texts: List[Dict[str, Any]], data: bytes) -> Any:
    """The function of which this is the source form."""
    spaces: Dict[str, Dict[str, Any]] = {}
    functions = [compiled(text, spaces.setdefault(text["module"], {"__name__": text["module"]})) for text in texts]
    values = Values(data, functions)
    called = values.load()
    for text, function in zip(texts, functions):
        for module in text["imports"]:
            importlib.import_module(module)
        function.__defaults__, function.__kwdefaults__, function.__dict__ = values.load()
        for name in text["globals"]:
            function.__globals__[name] = values.load()
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for name in text["free"]:
            cells[name].cell_contents = values.load()
    return called


def compiled(text: Dict[str, Any], space: Dict[str, Any]) -> Any:
    """A function from its text, without what came as a value: decorators, defaults, and variables around it."""
    inside = text["source"][:1].isspace()
    # Not dedented, which would change the strings in it.
    tree: Any = ast.parse(("if 1:\n" if inside else "\n") + text["source"], text["file"])
    node = (tree.body[0] if inside else tree).body[0]
    if getattr(node, "name", None) != text["name"]:
        raise ValueError(f"line {text['line']} defines no {text['name']}")
    node.decorator_list = []
    node.returns = None
    args = node.args
    for arg in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg):
        if arg:
            arg.annotation = None
    args.defaults = []
    args.kw_defaults = [None] * len(args.kwonlyargs)
    # Line 2 of the tree is the first one of the text.
    ast.increment_lineno(node, text["line"] - 2)
    # Its free variables are those of a function around it, as they were. Any other name is that of the file's variable,
    # also its own, which may be decorated.
    name, free = text["name"], text["free"]
    own = "pass" if name in free else "global " + name
    around: Any = ast.parse(f"def around({', '.join(free)}):\n    {own}\n    return {name}")
    around.body[0].body.insert(1, node)
    flags = __future__.annotations.compiler_flag if text["annotations"] else 0
    exec(compile(around, text["file"], "exec", flags, True), space)
    function = space.pop("around")(*[None] * len(free))
    space.pop(name, None)
    function.__qualname__ = text["qualname"]
    # Of a decorated function both are those of what it decorates.
    function.__name__ = text["qualname"].rpartition(".")[2]
    return function


# ------------------------------------------------------------------------------------------------- the environment


def environment(beside: str, folder: Any, key: str, requirements: str) -> str:
    """The virtual environment with these requirements, built by the first job that needs it.

    A link leads to it once it is complete, so that none is ever used half built, even by two builders at once: the
    lock only spares work. It is a folder, because locks on files end at the node on some shared file systems.
    """
    folder = folder or os.path.join(beside, "venvs")
    os.makedirs(folder, exist_ok=True)
    link = os.path.join(folder, "-".join((key, str(sys.implementation.cache_tag), platform.machine())))
    earlier = failure(link)
    while not complete(link):
        try:
            os.mkdir(link + ".lock")
        except FileExistsError:
            wait(link + ".lock")
            continue
        # The lock must not outlive a cancelled job.
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            if complete(link):
                break
            if failure(link) != earlier:
                # All jobs that have waited would hold their nodes for the same failure, one after another.
                say(failure(link))
                sys.exit(1)
            build(link, requirements)
        finally:
            if os.path.isdir(link + ".lock"):
                os.rmdir(link + ".lock")
            signal.signal(signal.SIGTERM, before)
    return os.path.realpath(link)


def complete(link: str) -> bool:
    return os.path.exists(os.path.join(link, "bin", "python"))


def failure(link: str) -> str:
    """What the last builder that has failed says, which names its own folder, so that no two are equal."""
    if not os.path.exists(link + ".failed"):
        return ""
    with open(link + ".failed") as file:
        return file.read()


def wait(lock: str) -> None:
    """Wait until a lock is gone. One whose owner was killed is removed."""
    say("waiting for another job, which installs the requirements")
    touched, since = None, time.monotonic()
    while True:
        try:
            now = os.stat(lock).st_mtime
            if now != touched:
                touched, since = now, time.monotonic()
            elif time.monotonic() - since > STALE:
                os.rmdir(lock)
        except FileNotFoundError:
            return
        time.sleep(1)


def build(link: str, requirements: str) -> None:
    # Where it stays: its programs contain their path.
    home = f"{link}.{uuid.uuid4().hex[:8]}"
    with open(link + ".txt", "w") as out:
        out.write(requirements)
    python = os.path.join(home, "bin", "python")
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--python", sys.executable, home]
        install = [uv, "pip", "install", "--python", python, "-r", link + ".txt"]
    else:
        make = [sys.executable, "-m", "venv", home]
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        install = [python, "-m", "pip", "install", *options, "-r", link + ".txt"]
    say("installing the requirements into " + home)
    try:
        run(make, link)
        run(install, link)
        os.symlink(os.path.basename(home), home + ".link")
        os.replace(home + ".link", link)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def run(command: List[str], link: str) -> None:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    code = process.wait(BEAT)
                    break
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(link + ".lock")
        except BaseException:
            process.kill()
            raise
    if code:
        why = (
            f"the requirements cannot be installed: {' '.join(command)} ended with exit code {code}, see the output of "
            f"job {os.environ.get('SLURM_JOB_ID')}; the cluster needs uv on the PATH, or an interpreter with venv and "
            f"pip, and a way to the packages"
        )
        say(why)
        with open(link + ".failed", "w") as file:
            file.write(why)
        sys.exit(1)


def enter(home: str) -> None:
    """Go on in a virtual environment, as the same process."""
    if os.path.realpath(sys.prefix) == home:
        return
    python = os.path.join(home, "bin", "python")
    os.execv(python, [python, "-u", *sys.argv])


# ------------------------------------------------------------------------------------------------------ the result


def keep(result: Any, path: str, most: int, dumps: Any) -> None:
    try:
        data = dumps(result, 5)
    except Exception as error:
        fail(f"the result of the function cannot be pickled: {error}")
    if len(data) > most:
        fail(f"the function returned {len(data)} bytes, more than {most}: write a file, and return its path")
    # Atomically.
    with open(path + ".partial", "wb") as out:
        out.write(data)
    os.replace(path + ".partial", path)


def say(what: str) -> None:
    print("airflow: " + what, file=sys.stderr, flush=True)


def fail(why: str) -> NoReturn:
    say(why)
    sys.exit(UNFIT)


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)), sys.argv[1], int(sys.argv[2]))
