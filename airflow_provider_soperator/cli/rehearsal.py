"""DAGs of files, and the context that their tasks would have in a run that is started by hand now, without a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_provider_soperator.cli.terminal import tell
from airflow_provider_soperator.errors import name_remedy

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG


def bags(places: Sequence[str]) -> Iterator[DagBag]:
    """The DAGs of files and folders; without any, those of Airflow's own bundles."""
    from airflow.dag_processing.dagbag import BundleDagBag, DagBag

    for place in places:
        if not Path(place).exists():
            raise FileNotFoundError(f"there is no file or folder {place}: name one, or the id of a DAG of Airflow")
        yield DagBag(os.path.abspath(place))
    for bundle in [] if places else _bundles():
        bundle.initialize()
        yield BundleDagBag(str(bundle.path), bundle_path=bundle.path, bundle_name=bundle.name)


def _bundles() -> Iterator[Any]:
    from airflow.dag_processing.bundles import manager

    bundles: Any = manager.DagBundlesManager  # It has no types.
    yield from bundles().get_all_dag_bundles()


def dags_of(names: Sequence[str]) -> list[DAG]:
    """DAGs by their ids, or all of files and folders; without a name all of Airflow."""
    found: dict[str, DAG] = {}
    ids: list[str] = []
    for name in names:
        its = {dag_id: dag for bag in bags([name]) for dag_id, dag in _read(bag).items()} if Path(name).exists() else {}
        found |= its
        # A folder beside a DAG may have its name; what is named by a path may have no DAG.
        if not its and not (os.sep in name and Path(name).exists()):
            ids.append(name)
    inside = list(bags(())) if ids or not names else []
    for bag in () if names else inside:
        _tell_unread(bag)
    known = {dag_id: dag for bag in inside for dag_id, dag in bag.dags.items()}
    for dag_id in ids:
        if dag_id not in known:
            raise LookupError(f"there is no DAG {dag_id}: {_why_not(dag_id, known, inside)}")
    return list((found | {dag_id: known[dag_id] for dag_id in (ids if names else known)}).values())


def _why_not(dag_id: str, known: Mapping[str, DAG], inside: Sequence[DagBag]) -> str:
    """What is wrong with the files that name a DAG; if none does, the nearest id, and the errors of all files."""
    errors = {Path(bag.dag_folder, file): why for bag in inside for file, why in bag.import_errors.items()}
    its = {file: why for file, why in errors.items() if dag_id in _text(file)}
    said = [f"{file} cannot be read: {cause_of(why)}" for file, why in (its or errors).items()]
    return "; ".join(said if its else [name_remedy(dag_id, known, "name its id, or its file"), *said])


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def _read(bag: DagBag) -> Mapping[str, DAG]:
    if bag.import_errors and not bag.dags:
        file, why = next(iter(bag.import_errors.items()))
        raise ValueError(f"{file} cannot be read: {cause_of(why)}")
    _tell_unread(bag)
    return bag.dags


def _tell_unread(bag: DagBag) -> None:
    """Tell of the files whose DAGs are not among those of a folder."""
    for file, why in bag.import_errors.items():
        tell(f"Left out, as it cannot be read: {Path(bag.dag_folder, file)}: {cause_of(why)}")


def in_order(dag: Any) -> list[Any]:
    """The tasks of a DAG, each after those before it."""
    return list(dag.topological_sort())


def the_dag(name: str) -> DAG:
    """The one DAG that is meant."""
    found = dags_of([name])
    if len(found) != 1:
        names = ", ".join(dag.dag_id for dag in found) or "none"
        raise LookupError(f"{name} has {len(found)} DAGs ({names}): name one by its id")
    return found[0]


def cause_of(trace: str) -> str:
    """The last line of a traceback, without the class of the error."""
    last = next((line for line in reversed(trace.splitlines()) if line and not line[0].isspace()), trace)
    return last.partition(": ")[2] or last


class Unknown(str):
    """What only a run will know: the result of another task, whatever is asked of it."""

    BEGINNING = "<result of "

    def __getitem__(self, name: object) -> Unknown:
        return self

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Unknown]:
        return iter([self])


def rehearsed(dag: DAG, task: Any, conf: Mapping[str, Any] | None = None, now: datetime | None = None) -> Any:
    """The context of a task in a run that is started then."""
    from airflow.api_fastapi.execution_api.datamodels.taskinstance import DagRun, TIRunContext
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunType

    now = now or datetime.now(timezone.utc)
    since, until = now, now
    # Timetables of the SDK cannot be asked.
    if infer := getattr(dag.timetable, "infer_manual_data_interval", None):
        import pendulum

        since, until = infer(run_after=pendulum.instance(now))
    run = DagRun(
        dag_id=dag.dag_id,
        run_id=f"manual__{now.isoformat()}",
        logical_date=now,
        data_interval_start=since,
        data_interval_end=until,
        run_after=now,
        start_date=now,
        end_date=None,
        run_type=DagRunType.MANUAL,
        state=DagRunState.RUNNING,
        conf=dict(conf or {}),
        triggering_user_name=user(),
        consumed_asset_events=[],
        partition_key=None,
    )
    told = TIRunContext(dag_run=run, max_tries=0, variables=[], connections=[], xcom_keys_to_clear=[])
    instance = _instance_class().model_construct(
        id=uuid4(),
        task_id=task.task_id,
        dag_id=dag.dag_id,
        run_id=run.run_id,
        try_number=1,
        map_index=-1,
        hostname="",
        task=task,
        _ti_context_from_server=told,
        max_tries=0,
        start_date=now,
    )
    return instance.get_template_context()


@cache
def _instance_class() -> Any:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    class RehearsedInstance(RuntimeTaskInstance):
        """A task instance that knows no results of others, and keeps its own to itself."""

        def xcom_pull(self, task_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
            return Unknown(f"{Unknown.BEGINNING}{task_ids}>")

        def xcom_push(self, key: str, value: Any) -> None:
            pass

    return RehearsedInstance


def user() -> str:
    """The user of this machine, for those who ask later who has done it."""
    from airflow.utils.platform import getuser

    with suppress(Exception):
        return str(getuser())
    return ""
