"""The page without an Airflow around it: who may see it, and that what is in it stays text."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_soperator import __version__
from airflow_provider_soperator.board.check_history import HealthLook
from airflow_provider_soperator.board.looks import Looks
from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.page import actions, viewer
from airflow_provider_soperator.page import app as page
from airflow_provider_soperator.page.sections import Sections, said
from airflow_provider_soperator.plugin import SoperatorPlugin
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState, NodeState

HOSTILE = "<script>alert('x')</script>\"'&"
NOW = datetime.now(timezone.utc)


def picture(**more: Any) -> Picture:
    nodes = (
        Node(name="worker-0", state=NodeState.parse("IDLE"), gres="gpu:8"),
        Node(name="worker-1", state=NodeState.parse("IDLE+DRAIN"), reason=HOSTILE, reason_user=HOSTILE),
    )
    jobs = (
        Job(id=JobId(7), name=HOSTILE, user=HOSTILE, state=JobState.parse("PENDING"), reason=HOSTILE),
        Job(id=JobId(8), name="fit", state=JobState.parse("RUNNING"), nodelist="worker-0", started=NOW),
    )
    tasks = {JobId(8): JobTasks(dag_id="train", run_id="r 1", task_id="fit")}
    config = ClusterConfig(version="25.11.3", cluster="soperator")
    said = {"connection": "c", "taken": NOW, "config": config, "nodes": nodes, "jobs": jobs, "tasks": tasks}
    return Picture(**(said | more))


class OnePicture:
    def __init__(self, shown: Picture | None) -> None:
        self.shown = shown

    async def newest(self, connection: str) -> Picture | None:
        return self.shown


class Nothing(Sections):
    """Sections of which nothing is known yet."""

    async def of(self, picture: Picture, may_see: Any) -> dict[str, Any]:
        return said(picture, may_see, None, None, None)


class Everything:
    """Airflow's rights: a viewer of the DAGs that are named."""

    dags = frozenset({"train"})
    sees_connections = True

    def is_authorized_connection(self, **asked: Any) -> bool:
        return self.sees_connections

    def is_authorized_view(self, **asked: Any) -> bool:
        return True

    def is_authorized_dag(self, *, details: Any, **asked: Any) -> bool:
        return details.id in self.dags

    def get_authorized_dag_ids(self, **asked: Any) -> frozenset[str]:
        return self.dags


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch) -> Everything:
    given = Everything()
    monkeypatch.setattr(viewer, "get_auth_manager", lambda: given)
    monkeypatch.setattr("airflow.api_fastapi.core_api.security.get_auth_manager", lambda: given)
    # It is in the database which DAGs are a team's.
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id: None)
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda dag_ids: {})
    monkeypatch.setattr(Connection, "get_team_name", lambda conn_id: None)
    monkeypatch.setattr(actions, "find_offers", lambda connection: [])
    monkeypatch.setattr(page, "known_connections", lambda environment: ["c", "other"])
    return given


def app_with(pictures: Any, sections: Any = None) -> FastAPI:
    app = page.make_app()
    app.state.pictures, app.state.sections = pictures, sections or Nothing()
    return app


def visit(path: str, shown: Picture | None, sections: Any = None) -> Any:
    app = app_with(OnePicture(shown), sections)
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vic", role="viewer")
    return TestClient(app, root_path="/af/soperator").get(path)


@pytest.fixture
def without_login() -> TestClient:
    return TestClient(app_with(OnePicture(picture())))


@pytest.mark.parametrize(
    "path", ["/", "/job?dag_id=train&run_id=r&task_id=fit", "/?connection=c", "/output?connection=c&job=8"]
)
def test_nothing_is_answered_without_a_login(without_login: TestClient, path: str) -> None:
    said = without_login.get(path)
    assert said.status_code == 401
    assert "worker" not in said.text


def test_who_is_not_logged_in_is_led_to_the_login_and_back() -> None:
    said = TestClient(app_with(OnePicture(picture())), root_path="/af/soperator").get(f"/?connection=c&find={HOSTILE}")
    assert (said.status_code, said.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert "script-src 'self'" in said.headers["Content-Security-Policy"]
    [link] = re.findall(r'<a href="/af/api/v2/auth/login\?next=([^"]*)">Log in</a>', said.text)
    assert unquote(unquote(link)) == f"/af/soperator/?connection=c&find={HOSTILE}"
    assert "<script>alert" not in said.text


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/redoc"])
def test_there_is_nothing_else_to_be_had(without_login: TestClient, path: str) -> None:
    assert without_login.get(path).status_code == 404


@pytest.mark.usefixtures("rights")
def test_hostile_texts_stay_texts() -> None:
    for path in ("/", "/?node=worker-1", f"/?search={HOSTILE}", f"/?connection={HOSTILE}"):
        said = visit(path, picture())
        assert "<script>alert" not in said.text
        assert "&lt;script&gt;alert" in said.text
        assert "script-src 'self'" in said.headers["Content-Security-Policy"]


@pytest.mark.usefixtures("rights")
def test_an_upgrade_brings_its_own_scripts_and_styles() -> None:
    files = re.findall(r'"/af/soperator/static/soperator\.(css|js)\?v=([^"]+)"', visit("/", picture()).text)
    assert files == [("css", __version__), ("js", __version__)]


@pytest.mark.usefixtures("rights")
def test_a_task_is_linked_below_the_address_of_airflow() -> None:
    said = visit("/", picture()).text
    assert 'href="/af/dags/train/runs/r%201/tasks/fit"' in said
    assert 'href="/af/soperator/?connection=c&amp;node=worker-0"' in said


def test_the_task_of_a_dag_that_one_may_not_see_is_not_named(rights: Everything) -> None:
    rights.dags = frozenset()
    said = visit("/", picture()).text
    assert "train" not in said
    assert '<td class="brief">8</td>' in said
    assert visit("/job?dag_id=train&run_id=r+1&task_id=fit", picture()).status_code == 403


@pytest.mark.usefixtures("rights")
def test_the_tab_of_a_task_has_its_job() -> None:
    said = visit("/job?dag_id=train&run_id=r+1&task_id=fit&map_index={MAP_INDEX}", picture()).text
    assert "Job 8" in said
    other = visit("/job?dag_id=train&run_id=r+1&task_id=evaluate&map_index=-1", picture()).text
    assert "No job of this task is in a queue" in other


def test_the_name_of_a_job_whose_task_one_may_not_see_is_not_shown(rights: Everything) -> None:
    rights.dags = frozenset()
    named = Job(id=JobId(8), name="fit.train.manual", state=JobState.parse("RUNNING"))
    shown = visit("/?search=train", picture(jobs=(named,))).text
    assert "fit.train" not in shown
    assert '<td class="brief">8</td>' not in shown


@pytest.mark.usefixtures("rights")
def test_a_task_whose_job_has_left_the_queue_since_it_was_found_has_a_tab() -> None:
    said = visit("/job?dag_id=train&run_id=r+1&task_id=fit", picture(jobs=(), failures={"tasks": "Database is away."}))
    # Which tasks the jobs there are of is not known.
    assert "No job of this task is in a queue that was read." in said.text


@pytest.mark.usefixtures("rights")
def test_the_tab_says_of_which_connection_the_queue_could_not_be_read_and_how_old_it_is() -> None:
    tab = "/job?dag_id=train&run_id=r+1&task_id=fit"
    away = dict.fromkeys(("jobs", "tasks"), "login.example.com is away.")
    never = visit(tab, picture(jobs=(), tasks={}, failures=away)).text
    assert "No job of this task is in a queue that was read." in never
    assert "Not read: c, other." in never
    old = dict.fromkeys(away, datetime.now(timezone.utc) - timedelta(hours=4, seconds=1))
    stale = visit(tab, picture(failures=away, since=old)).text
    assert "Job 8" in stale
    assert re.search(r"Not read: c \(what was read last is 4 h[^)]* old\), other \(what was read last is 4 h", stale)
    assert "login.example.com" not in never + stale


def test_where_tasks_are_not_known_names_of_their_jobs_are_for_those_who_may_see_the_connection(
    rights: Everything,
) -> None:
    keyed = Job(id=JobId(8), name="fit.secret.manual.af-q6befiawjvkz", state=JobState.parse("RUNNING"))
    shown = picture(jobs=(keyed,), tasks={}, failures={"tasks": "Database is away."})
    assert "fit.secret" in visit("/", shown).text
    rights.sees_connections = False
    assert "fit.secret" not in visit("/", shown).text


@pytest.mark.usefixtures("rights")
def test_the_server_goes_on_while_the_page_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: dict[str, bool] = {}

    def noting(name: str, real: Any) -> Any:
        def noted(*args: Any) -> Any:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                loops[name] = True
            loops.setdefault(name, False)
            return real(*args)

        return noted

    for name in ("wall", "queue_page", "left_overs", "offers_to"):
        monkeypatch.setattr(page, name, noting(name, getattr(page, name)))
    monkeypatch.setattr(viewer, "without_tasks", noting("without_tasks", viewer.without_tasks))
    assert visit("/", picture()).status_code == 200
    assert loops == dict.fromkeys(("without_tasks", "wall", "queue_page", "left_overs", "offers_to"), False)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose output was read."""
    read = []

    async def tail(connection: str, job: Job) -> str:
        read.append(str(job.id))
        return HOSTILE

    monkeypatch.setattr(page, "output_tail", tail)
    return read


def test_the_last_lines_of_a_job_are_read_for_those_who_may_read_the_log_of_its_task(
    rights: Everything, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "known_connections", lambda environment: ["c"])
    shown = visit("/output?connection=c&job=8", picture())
    assert (shown.status_code, printed) == (200, ["8"])
    assert "&lt;script&gt;alert" in shown.text
    # One without a task, one that is not there, and a connection that is not there.
    for asked in ("connection=c&job=7", "connection=c&job=99", "connection=x&job=8", "connection=c&job=/etc/passwd"):
        assert visit(f"/output?{asked}", picture()).status_code == 404
    monkeypatch.setattr(Everything, "is_authorized_dag", lambda self, *, access_entity, **asked: False)
    assert visit("/output?connection=c&job=8", picture()).status_code == 404
    rights.dags = frozenset()
    assert visit("/output?connection=c&job=8", picture()).status_code == 404
    assert printed == ["8"]


@pytest.mark.usefixtures("rights")
def test_the_last_lines_of_a_job_wait_for_the_first_picture_of_its_queue() -> None:
    said = visit("/output?connection=c&job=8", None)
    assert (said.status_code, "is being read" in said.text) == (200, True)


def test_what_tasks_that_share_a_job_print_is_for_those_who_may_read_the_logs_of_all(
    rights: Everything, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "known_connections", lambda environment: ["c"])
    shared = replace(picture().tasks[JobId(8)], others=[("secret", "r", "fit", -1)])
    assert visit("/output?connection=c&job=8", picture(tasks={JobId(8): shared})).status_code == 404
    rights.dags = frozenset({"train", "secret"})
    assert visit("/output?connection=c&job=8", picture(tasks={JobId(8): shared})).status_code == 200
    assert printed == ["8"]


def test_a_log_is_read_with_the_rights_in_the_team_of_its_dag(
    rights: Everything, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "known_connections", lambda environment: ["c"])
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda dag_ids: {"train": "vision"})
    monkeypatch.setattr(
        Everything, "is_authorized_dag", lambda self, *, details, **asked: details.team_name == "vision"
    )
    assert visit("/output?connection=c&job=8", picture()).status_code == 200
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda dag_ids: {})
    assert visit("/output?connection=c&job=8", picture()).status_code == 404


def test_why_no_output_is_read_names_no_hosts_but_says_what_is_wrong_with_the_file(
    rights: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [FileError("the job has written no output yet"), OSError("login.example.com is away")]

    async def tail(connection: str, job: Job) -> str:
        raise errors.pop(0)

    monkeypatch.setattr(page, "output_tail", tail)
    monkeypatch.setattr(page, "known_connections", lambda environment: ["c"])
    rights.sees_connections = False
    assert "written no output yet" in visit("/output?connection=c&job=8", picture()).text
    said = visit("/output?connection=c&job=8", picture()).text
    assert "The reason is told to those who may see the connection." in said
    assert "login.example.com" not in said


@pytest.mark.usefixtures("rights")
def test_the_tab_asks_all_connections_at_once_and_waits_no_longer_than_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(20)]
    monkeypatch.setattr(page, "known_connections", lambda environment: names)
    asked: list[str] = []

    async def silent(connection: str, before: Any) -> Any:
        asked.append(connection)
        await asyncio.sleep(3600)

    app = app_with(Looks(silent, interval=60.0, glance=0.2))
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vic", role="viewer")
    said = TestClient(app, root_path="/af/soperator").get("/job?dag_id=train&run_id=r+1&task_id=fit").text
    assert len(asked) == 16
    assert "Being read: c0, c1" in said
    assert "No job of this task is in a queue that was read." in said


@pytest.mark.usefixtures("rights")
def test_old_files_of_calls_are_shown() -> None:
    shown = visit("/", picture(files=("/root/.airflow-soperator/aaaaaaaaaaaa.zip",))).text
    assert "file /root/.airflow-soperator/aaaaaaaaaaaa.zip" in shown
    assert "No drain, reservation or old file of a DAG." not in shown


@pytest.mark.parametrize(
    ("path", "shown", "times"),
    [
        ("/", picture(), 1),
        ("/", None, 0),
        ("/?connection=missing", picture(), 0),
        ("/job?dag_id=train&run_id=r+1&task_id=fit", picture(), 0),
        ("/output?connection=c&job=7", picture(), 0),
    ],
)
def test_airflow_is_asked_for_the_dags_of_a_viewer_where_these_matter(
    path: str, shown: Picture | None, times: int, rights: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def readable(self: Everything, **_: Any) -> frozenset[str]:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            asked.append(False)
        asked.append(True)
        return self.dags

    monkeypatch.setattr(Everything, "get_authorized_dag_ids", readable)
    visit(path, shown)
    # In a thread, as Airflow looks into its database.
    assert asked == [True] * times


@pytest.mark.usefixtures("rights")
def test_nodes_that_are_looked_for_stand_out() -> None:
    shown = visit("/?find=DRAIN", picture()).text
    assert "1 of 2 nodes" in shown
    assert re.search(r'id="node-worker-0" class="tile idle faded"', shown)
    assert re.search(r'id="node-worker-1" class="tile drained"', shown)


@pytest.mark.usefixtures("rights")
def test_nodes_in_a_state_without_a_word_are_in_the_legend() -> None:
    shown = visit("/", picture(nodes=(Node(name="worker-0", state=NodeState.parse("IDLE+INVALID_REG")),))).text
    assert '<i class="tile unknown"></i>1 unknown</a>' in shown


@pytest.mark.usefixtures("rights")
def test_a_job_that_waits_says_when_slurm_expects_it_to_start() -> None:
    moment = datetime(2026, 11, 26, 8, 4, tzinfo=timezone.utc)
    waiting = Job(id=JobId(7), state=JobState.parse("PENDING"), reason="Resources", started=moment)
    assert "; expected to start at 26 Nov 08:04 UTC</td>" in visit("/", picture(jobs=(waiting,))).text


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize(("ran", "said"), [(timedelta(seconds=10), "10 s; ended"), (None, "ended")])
def test_a_job_that_has_ended_says_how_long_it_ran_and_when_it_ended(ran: timedelta | None, said: str) -> None:
    ended = datetime.now(timezone.utc) - timedelta(hours=4, seconds=1)
    over = Job(id=JobId(7), state=JobState.parse("COMPLETED"), started=ran and ended - ran, ends=ended)
    assert re.search(rf"<td>{said} 4 h[^<]* ago</td>", visit("/?jobs=ended", picture(jobs=(over,))).text)


@pytest.mark.usefixtures("rights")
def test_many_nodes_are_small_tiles_in_lines() -> None:
    many = tuple(Node(name=f"worker-{number}", state=NodeState.parse("IDLE")) for number in range(1000))
    shown = visit("/", picture(nodes=many)).text
    assert shown.count('<ul class="wall dense">') == 25
    assert '<span class="quiet" aria-hidden="true">960</span>' in shown


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize(("parts", "names"), [(["jobs", "tasks"], "jobs, tasks"), (["config"], "settings")])
def test_what_could_not_be_read_is_said_with_its_age(parts: list[str], names: str) -> None:
    why = "Login node is away."
    old = datetime.now(timezone.utc) - timedelta(minutes=5, seconds=1)
    said = visit("/", picture(failures=dict.fromkeys(parts, why), since=dict.fromkeys(parts, old))).text
    assert f"<strong>Not read: {names}.</strong> {why}" in said
    assert re.search(r"What is shown of it is 5 min \d+ s old\.", said)


def test_why_something_could_not_be_read_is_told_to_those_who_may_see_the_connection(rights: Everything) -> None:
    rights.sees_connections = False
    said = visit("/", picture(failures={"nodes": "login.example.com is away."})).text
    assert "<strong>Not read: nodes.</strong> The reason is told to those who may see the connection." in said
    assert "login.example.com" not in said


@pytest.mark.usefixtures("rights")
def test_the_reason_is_told_by_the_rights_in_the_team_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Everything, "is_authorized_connection", lambda self, *, details, **asked: details.team_name == "vision"
    )
    monkeypatch.setattr(Connection, "get_team_name", {"c": "vision"}.get)
    assert "login.example.com" in visit("/", picture(failures={"nodes": "login.example.com is away."})).text


@pytest.mark.usefixtures("rights")
def test_a_connection_that_is_not_there_is_not_tried() -> None:
    said = visit("/?connection=missing", picture())
    assert said.status_code == 404
    assert "No connection missing" in said.text


@pytest.mark.usefixtures("rights")
def test_the_first_one_to_look_is_told_that_the_cluster_is_being_read() -> None:
    assert "The cluster is being read" in visit("/", None).text


def test_the_page_and_the_tab_are_offered_below_the_address_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/af/")
    nav, tab = SoperatorPlugin().external_views
    assert (nav["destination"], nav["href"]) == ("nav", "/af/soperator/")
    assert tab["href"].startswith("/af/soperator/job?dag_id={DAG_ID}&")


def test_what_is_drawn_anew_is_no_alert() -> None:
    # A screen reader would repeat it each time.
    assert [one.name for one in (viewer.HERE / "templates").iterdir() if 'role="alert"' in one.read_text()] == []


EMPTY = ("No nodes.", "0 running on 0 GPUs", "No job.", "Slurm has nothing against any node.", "No drain, reservation")


@pytest.mark.usefixtures("rights")
def test_what_was_never_read_is_not_told_to_be_empty() -> None:
    parts = ("config", "nodes", "jobs", "reservations", "files", "tasks")
    nothing: dict[str, Any] = {"nodes": (), "jobs": (), "tasks": {}, "failures": dict.fromkeys(parts, "It is away.")}
    never = visit("/", picture(**nothing)).text
    assert [text for text in EMPTY if text in never] == []
    without_jobs = visit("/", picture(**nothing, since=dict.fromkeys({*parts} - {"jobs"}, NOW))).text
    assert [text for text in EMPTY if text in without_jobs] == [EMPTY[0], EMPTY[3]]
    empty = visit("/", picture(**(nothing | {"failures": {}}))).text
    assert [text for text in EMPTY if text in empty] == [*EMPTY]


@pytest.mark.usefixtures("rights")
def test_without_findings_each_source_is_told_to_have_none() -> None:
    class Asked(Nothing):
        async def of(self, picture: Picture, may_see: Any) -> dict[str, Any]:
            health = HealthLook(taken=NOW, observations=Observations(kubernetes={}))
            return await super().of(picture, may_see) | {"health": health, "findings": {}}

    assert "No source has anything against any node." in visit("/", picture(), Asked()).text
