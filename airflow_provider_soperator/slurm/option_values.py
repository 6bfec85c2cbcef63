"""Values of options: as users write them, as sbatch reads them, and as JSON for slurmrestd."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from typing import Any

#: Slurm's words for "no limit".
UNLIMITED = frozenset({"unlimited", "infinite", "-1"})

#: What an option takes for a text.
_TEXTS = (str, int, float, PathLike)
_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?:(?P<unit>[KMGT])(?P<binary>i)?B?)?", re.IGNORECASE)
_DURATION = re.compile(
    r"(?:(?P<days>\d+)-(?P<dhours>\d+)(?::(?P<dminutes>\d+)(?::(?P<dseconds>\d+))?)?)"
    r"|(?:(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+))"
    r"|(?:(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?)"
)


def in_megabytes(amount: int | str) -> int:
    """Memory in megabytes; so is a number without a unit, as in Slurm.

    >>> in_megabytes("16G"), in_megabytes("1.5GiB"), in_megabytes(512)
    (16384, 1536, 512)
    """
    if isinstance(amount, bool):
        raise ValueError(f"takes no bool, got {amount}")
    if isinstance(amount, int):
        if amount < 0:
            raise ValueError(f"must be >= 0, got {amount}")
        return amount
    found = _MEMORY.fullmatch(amount.strip())
    if found is None:
        raise ValueError(f"{amount!r} is not an amount of memory: write a whole number and K, M, G or T, such as 16G")
    return math.ceil(float(found["number"]) * _MEBIBYTES[(found["unit"] or "M").upper()])


def memory_text(amount: int | str) -> str:
    """An amount of memory as an option's value. Values that Slurm can read are not changed."""
    if isinstance(amount, str) and re.fullmatch(r"\d+(?:[KMGT]B?)?", amount, re.IGNORECASE):
        return amount
    return f"{in_megabytes(amount)}M"


def is_unlimited(amount: timedelta | int | str) -> bool:
    return isinstance(amount, str) and amount.lower() in UNLIMITED


def in_seconds(amount: timedelta | int | str) -> int:
    """A limited duration in seconds; a number is in minutes, as in Slurm.

    >>> in_seconds("1-12"), in_seconds("90"), in_seconds("90:30"), in_seconds(timedelta(hours=2))
    (129600, 5400, 5430, 7200)
    """
    if isinstance(amount, bool):
        raise ValueError(f"takes no bool, got {amount}")
    if isinstance(amount, timedelta):
        whole = math.ceil(amount.total_seconds())
    elif isinstance(amount, int):
        whole = amount * 60
    else:
        found = _DURATION.fullmatch(amount)
        if found is None:
            raise ValueError(f"{amount!r} is not a duration: write minutes, H:MM:SS, D-HH or D-HH:MM:SS")
        part = {name: int(digits or 0) for name, digits in found.groupdict().items()}
        hours = part["days"] * 24 + part["dhours"] + part["hours"]
        minutes = hours * 60 + part["dminutes"] + part["minutes"] + part["only_minutes"]
        whole = minutes * 60 + part["dseconds"] + part["seconds"] + part["only_seconds"]
    if whole < 0:
        raise ValueError(f"must be >= 0, got {amount}")
    return whole


def in_minutes(amount: timedelta | int | str) -> int:
    """A limited duration in minutes, rounded up as Slurm does."""
    return -(-in_seconds(amount) // 60)


def duration_text(amount: timedelta | int | str) -> str:
    """A duration as an option's value."""
    if isinstance(amount, str):
        if not is_unlimited(amount):
            in_seconds(amount)  # rejects values that Slurm would misread, such as "2h"
        return amount
    if isinstance(amount, int):
        return str(in_minutes(amount))
    whole = in_seconds(amount)
    days, rest = divmod(whole, 86_400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def moment_text(when: datetime | timedelta | str) -> str:
    """A time as an option's value: a date, a time from now, or Slurm's own notation ("16:00", "teatime").

    A date with a time zone, also in a text, becomes seconds since the epoch, independent of the cluster's zone; a date
    without one is in the cluster's local time.

    >>> moment_text(timedelta(minutes=10)), moment_text(datetime(2030, 1, 2, 3, 4, 5))
    ('now+600seconds', '2030-01-02T03:04:05')
    >>> from datetime import timezone
    >>> moment_text(datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    'uts1893553445'
    """
    if isinstance(when, str):
        try:
            parsed = datetime.fromisoformat(when.strip().replace("Z", "+00:00"))
        except ValueError:
            return when
        # Slurm takes no zone.
        return moment_text(parsed) if parsed.tzinfo else when
    if isinstance(when, timedelta):
        return f"now+{in_seconds(when)}seconds"
    if when.tzinfo is not None:
        return f"uts{math.ceil(when.timestamp())}"
    return when.strftime("%Y-%m-%dT%H:%M:%S")


Json = dict[str, Any]

_MAIL = {"INVALID_DEPEND": "INVALID_DEPENDENCY", "TIME_LIMIT": "TIME=100%"} | {
    f"TIME_LIMIT_{percent}": f"TIME={percent}%" for percent in (50, 80, 90)
}
_MAIL_ALL = ("BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPENDENCY", "STAGE_OUT")
_GRES_FLAGS = {"disable-binding": "GRES_BINDING_DISABLED", "enforce-binding": "GRES_BINDING_ENFORCED"}


#: The signals whose names Slurm knows.
SIGNALS = frozenset(
    {
        *("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "CHLD", "USR1", "USR2"),
        *("PIPE", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"),
    }
)


@dataclass(frozen=True)
class Signal:
    """A signal that the job gets before its time is up."""

    name: str | int
    seconds: int = 60
    #: Only to the batch script itself, not to its steps.
    batch_only: bool = False
    #: Also when a reservation that overlaps the job is about to begin.
    reservation: bool = False

    def __str__(self) -> str:
        prefix = "R" * self.reservation + "B" * self.batch_only
        return f"{prefix}{':' if prefix else ''}{str(self.name).upper().removeprefix('SIG')}@{self.seconds}"

    @classmethod
    def parse(cls, text: str) -> Signal:
        found = re.fullmatch(r"(?:(?P<flags>[BR]{1,2}):)?(?P<name>[A-Z0-9]+)(?:@(?P<seconds>\d+))?", text.upper())
        if found is None:
            raise ValueError(f"{text!r} is not a signal: write [R][B:]NAME[@SECONDS], such as B:USR1@120")
        name = found["name"].removeprefix("SIG")
        flags = found["flags"] or ""
        return cls(int(name) if name.isdecimal() else name, int(found["seconds"] or 60), "B" in flags, "R" in flags)

    @classmethod
    def of(cls, value: Signal | str) -> Signal:
        return value if isinstance(value, Signal) else cls.parse(plain_text(value))

    def problems(self) -> list[str]:
        name = str(self.name).upper().removeprefix("SIG")
        found = []
        if not (0 < int(name) < 65 if name.isdecimal() else name in SIGNALS):
            found.append(f"{self.name!r} is not a signal that Slurm knows")
        if not 0 <= self.seconds <= 65_535:
            found.append(f"seconds must be between 0 and 65535, got {self.seconds}")
        return found


def as_words(value: Any) -> list[str]:
    """A list, which may be given as one text with commas."""
    return str(value).split(",") if isinstance(value, _TEXTS) else [str(part) for part in value]


def plain_text(value: Any) -> str:
    """A text, a path, or a number, which Airflow makes of a text where templates render natively."""
    if isinstance(value, bool) or not isinstance(value, _TEXTS):
        raise ValueError(f"takes a text, got {value!r}")
    return str(value)


def list_text(value: Any, joint: str = ":") -> str:
    """A list as an option's value; ``joint`` is between name and value, where an item has both.

    >>> list_text({"gpu": 8})
    Traceback (most recent call last):
    ValueError: takes a list, got {'gpu': 8}: write 'gpu:8'
    """
    if isinstance(value, Mapping):
        form = ",".join(f"{name}{joint}{one}" for name, one in value.items())
        raise ValueError(f"takes a list, got {value!r}: write {form!r}")
    return ",".join(map(plain_text, [value] if isinstance(value, _TEXTS) else value))


def as_texts(value: Any) -> Any:
    """Numbers as texts, also those in a list or a dict.

    >>> as_texts({"SEED": 1, "RATE": 0.1}), as_texts(["seq", 3])
    ({'SEED': '1', 'RATE': '0.1'}, ['seq', '3'])
    """
    if isinstance(value, Mapping):
        return {name: as_texts(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_texts(one) for one in value]
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


# Fields of slurmrestd that do not have the option's own value, from its text.

Fields = Callable[[str], Json]


def listed(key: str) -> Fields:
    """A hostlist as one item: it may have commas in brackets, and slurmrestd joins items with commas."""
    return lambda written: {key: [written]}


def generic_resource(key: str) -> Fields:
    """ "h100:8" of GPUs is "gres/gpu:h100:8" among all resources."""
    return lambda written: {key: ",".join(f"gres/gpu:{part}" for part in written.split(","))}


def gpus_per_task(written: str) -> Json:
    """GPUs of a task, as sbatch writes them: with "=", and the task is bound to them."""
    parts = [part.rpartition(":") for part in written.split(",")]
    return {"tres_per_task": ",".join(f"gres/gpu{colon}{name}={count}" for name, colon, count in parts)}


def gres(written: str) -> Json:
    if written.lower() == "none":
        return {}
    parts = (part if part.startswith("gres") else f"gres/{part}" for part in written.split(","))
    return {"tres_per_node": ",".join(parts)}


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
        raise ValueError(f"slurmrestd has no value for {unknown}") from None


def signal(written: str) -> Json:
    parsed = Signal.parse(written)
    flags = ["BATCH_JOB"] * parsed.batch_only + ["RESERVATION_JOB"] * parsed.reservation
    delay = {"set": True, "number": parsed.seconds}
    said: Json = {"kill_warning_signal": str(parsed.name), "kill_warning_delay": delay}
    return said | ({"kill_warning_flags": flags} if flags else {})


def switches(written: str) -> Json:
    count, _, wait = written.partition("@")
    said: Json = {"required_switches": {"set": True, "number": int(count)}}
    return said | ({"wait_for_switch": in_seconds(wait)} if wait else {})


def pyxis(name: str) -> Fields:
    """Options of a SPANK plugin in the job's environment, as sbatch sets them: once for the batch script and once for
    the steps that srun starts from it.
    """
    variable = f"_SLURM_SPANK_OPTION_pyxis_{name.replace('-', '_')}"
    # sbatch itself writes "(null)" for a flag.
    return lambda written: {"environment": [f"{variable}={written}", f"SLURM_SPANK_{variable}={written or '(null)'}"]}
