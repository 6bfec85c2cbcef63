"""How the values of options are written for sbatch, read back, and said to slurmrestd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm import amounts, terms

Json = dict[str, Any]

_MAIL = {"INVALID_DEPEND": "INVALID_DEPENDENCY", "TIME_LIMIT": "TIME=100%"} | {
    f"TIME_LIMIT_{percent}": f"TIME={percent}%" for percent in (50, 80, 90)
}
_MAIL_ALL = ("BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPENDENCY", "STAGE_OUT")
_GRES_FLAGS = {"disable-binding": "GRES_BINDING_DISABLED", "enforce-binding": "GRES_BINDING_ENFORCED"}


@dataclass(frozen=True)
class Kind:
    """How one sort of value is written as an option's text, and read from it. Both raise ValueError in words.

    >>> LIST.write(["a", "b"]), NUMBER.read("7")
    ('a,b', 7)
    """

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is no whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is no whole number") from None


def _count(value: Any) -> int:
    if (number := _number(value)) < 0:
        raise ValueError(f"{number} is negative")
    return number


def _positive(value: Any) -> int:
    if (number := _count(value)) == 0:
        raise ValueError("0 is none at all")
    return number


def _counted(value: Any) -> str:
    """A count, or a text with counts in it such as "h100:8" or "2-4"."""
    return value if isinstance(value, str) else str(_count(value))


def _digits(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _boolean(no: str, yes: str) -> Kind:
    def read(text: str) -> bool:
        if text.lower() not in (no, yes):
            raise ValueError(f"{text!r} is neither {no} nor {yes}")
        return text.lower() == yes

    return Kind(lambda value: yes if value else no, read)


def _priority(value: Any) -> str:
    return "TOP" if isinstance(value, str) and value.upper() == "TOP" else str(_count(value))


def _open_mode(value: str) -> str:
    for mode in ("append", "truncate"):
        if value.lower() in (mode, mode[0]):
            return mode
    raise ValueError(f"{value!r} is neither append nor truncate")


def _exclusive(value: bool | str) -> str:
    if value is True or str(value).lower() == "exclusive":
        return ""
    if str(value).lower() not in ("user", "mcs", "topo", "oversubscribe"):
        raise ValueError(f"{value!r} is none of True, user, mcs and topo")
    return str(value).lower()


TEXT = Kind(str, str)
LIST = Kind(lambda value: ",".join(terms.as_words(value)), str)
NUMBER = Kind(lambda value: str(_number(value)), _number)
COUNT = Kind(lambda value: str(_count(value)), _count)
POSITIVE = Kind(lambda value: str(_positive(value)), _positive)
COUNTED = Kind(_counted, _digits)
MEMORY = Kind(amounts.memory, str)
DURATION = Kind(amounts.duration, str)
MOMENT = Kind(amounts.moment, str)
DEPENDENCY = Kind(terms.dependency_text, str)
SIGNAL = Kind(lambda value: str(terms.Signal.parse(value) if isinstance(value, str) else value), terms.Signal.parse)
PRIORITY = Kind(_priority, _digits)
OPEN_MODE = Kind(_open_mode, _open_mode)
EXCLUSIVE = Kind(_exclusive, _exclusive)
YES_NO = _boolean("no", "yes")
ONE_ZERO = _boolean("0", "1")
#: Given or not given, without a value.
FLAG = Kind(lambda value: "", str)


# What slurmrestd is told. Each takes the option's text.

Rest = Callable[[str], Json]


def text(key: str) -> Rest:
    return lambda written: {key: written}


def number(key: str) -> Rest:
    return lambda written: {key: int(written)}


def listed(key: str) -> Rest:
    """A list of hosts goes as one item: it has commas inside brackets too, and slurmrestd joins items with commas."""
    return lambda written: {key: [written]}


def always(key: str, value: Any) -> Rest:
    """For flags: what their presence says."""
    return lambda written: {key: value}


def flag(name: str) -> Rest:
    return lambda written: {"flags": [name]}


def megabytes(key: str) -> Rest:
    return lambda written: {key: {"set": True, "number": amounts.megabytes(written)}}


def minutes(key: str) -> Rest:
    def say(written: str) -> Json:
        if amounts.is_unlimited(written):
            return {key: {"set": True, "infinite": True, "number": 0}}
        return {key: {"set": True, "number": amounts.minutes(written)}}

    return say


def generic_resource(key: str, name: str = "gres/gpu") -> Rest:
    """ "h100:8" of GPUs is "gres/gpu:h100:8" among all resources."""
    return lambda written: {key: ",".join(f"{name}:{part}" for part in written.split(","))}


def gpus_per_task(written: str) -> Json:
    """What sbatch itself makes of it: the resources of a task are written with "=", and the task is bound to them."""
    parts = [part.rpartition(":") for part in written.split(",")]
    return {"tres_per_task": ",".join(f"gres/gpu{colon}{name}={count}" for name, colon, count in parts)}


def gres(written: str) -> Json:
    if written.lower() == "none":
        return {}
    parts = (part if part.startswith("gres") else f"gres/{part}" for part in written.split(","))
    return {"tres_per_node": ",".join(parts)}


def shared(written: str) -> Json:
    return {"shared": [written or "none"]}


def mail(written: str) -> Json:
    names = [name.strip().upper() for name in written.split(",")]
    if "NONE" in names:
        return {}
    found: list[str] = []
    for name in names:
        found += _MAIL_ALL if name == "ALL" else (_MAIL.get(name, name),)
    return {"mail_type": found}


def profile(written: str) -> Json:
    names = [name.strip().upper() for name in written.split(",")]
    return {"profile": ["ENERGY", "LUSTRE", "NETWORK", "TASK"] if "ALL" in names else names}


def gres_flags(written: str) -> Json:
    try:
        return {"flags": [_GRES_FLAGS[name.strip().lower()] for name in written.split(",")]}
    except KeyError as unknown:
        raise ValueError(f"slurmrestd has no word for {unknown}") from None


def signal(written: str) -> Json:
    parsed = terms.Signal.parse(written)
    flags = ["BATCH_JOB"] * parsed.batch_only + ["RESERVATION_JOB"] * parsed.reservation
    delay = {"set": True, "number": parsed.seconds}
    said: Json = {"kill_warning_signal": str(parsed.name), "kill_warning_delay": delay}
    return said | ({"kill_warning_flags": flags} if flags else {})


def switches(written: str) -> Json:
    count, _, wait = written.partition("@")
    said: Json = {"required_switches": {"set": True, "number": int(count)}}
    return said | ({"wait_for_switch": amounts.seconds(wait)} if wait else {})


def priority(written: str) -> Json:
    top = 0xFFFF_FFFD  # what sbatch makes of "TOP"
    return {"priority": {"set": True, "number": top if written == "TOP" else int(written)}}


def kill_on_invalid_dep(written: str) -> Json:
    return {"flags": ["KILL_INVALID_DEPENDENCY" if written == "yes" else "NO_KILL_INVALID_DEPENDENCY"]}


def pyxis(name: str) -> Rest:
    """A SPANK plugin's options travel in the job's environment: as sbatch has them, once for the batch script and once
    for the steps that srun starts from it.
    """
    variable = f"_SLURM_SPANK_OPTION_pyxis_{name.replace('-', '_')}"
    # "(null)" is what sbatch itself writes for a flag.
    return lambda written: {"environment": [f"{variable}={written}", f"SLURM_SPANK_{variable}={written or '(null)'}"]}
