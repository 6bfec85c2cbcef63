"""The buttons of actions and their forms: who has them, and that what they tell stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

from airflow_provider_soperator.board.offers import FormField, Offer
from airflow_provider_soperator.page import actions
from airflow_provider_soperator.page.app import make_app
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Reservation
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState, NodeState
from tests.unit.page.test_app import HOSTILE, Everything, picture, rights, visit

__all__ = ["rights"]
KINDS = ("drain", "undrain", "power_up", "power_down", "replace", "check", "cancel", "release", "shift", "approve")
REASON = {"type": "string", "minLength": 1, "maxLength": 200, "title": "Reason"}


def form(*fields: FormField) -> Any:
    """What the DAG's form has; a given value is in place of its own."""
    return lambda dag_id, given: [
        FormField(name=one.name, value=given.get(one.name, one.value), schema=one.schema) for one in fields
    ]


@pytest.fixture
def offers(rights: Everything, monkeypatch: pytest.MonkeyPatch) -> dict[str, Offer]:
    """All actions there are, each by a DAG that the viewer may trigger."""
    found = {kind: Offer(kind=kind, dag_id=f"cluster_{kind}") for kind in KINDS}
    rights.dags = frozenset({"train", *(offer.dag_id for offer in found.values())})
    monkeypatch.setattr(actions, "find_offers", lambda connection: list(found.values()))
    monkeypatch.setattr(actions, "fields_of", form(FormField(name="reason", value=None, schema=REASON)))
    monkeypatch.setattr(actions, "dags_at_work", lambda dag_ids: dict.fromkeys(dag_ids, False))
    return found


def buttons(text: str) -> dict[str, bool]:
    """The buttons of actions, and whether they are on."""
    on = re.findall(r'<a class="act"[^>]*>([^<]*)</a>', text)
    return dict.fromkeys(on, True) | dict.fromkeys(
        re.findall(r"<button type=.button. disabled[^>]*>([^<]*)<", text), False
    )


@pytest.mark.usefixtures("offers")
def test_a_node_has_the_actions_that_make_sense_for_it() -> None:
    config = ClusterConfig(version="25.11.3", suspend_exc_nodes="worker-1")
    of_idle, of_drained = (
        buttons(visit(f"/?node={name}", picture(config=config)).text) for name in ("worker-0", "worker-1")
    )
    everywhere = {"Run a check", "Plan by cluster_shift", "Move GPUs or steer by cluster_shift", "Cancel"}
    assert {*of_idle} - everywhere == {"Drain", "Power down", "Replace machine"}
    assert {*of_drained} - everywhere == {"Undrain", "Replace machine"}


def test_of_two_dags_that_do_the_same_each_button_says_which(offers: dict[str, Offer], rights: Everything) -> None:
    offers["other"] = Offer(kind="drain", dag_id="oncall_drain")
    rights.dags |= {"oncall_drain"}
    assert {"Drain by cluster_drain", "Drain by oncall_drain", "Power down"} <= {
        *buttons(visit("/?node=worker-0", picture()).text)
    }


def may_read_all_and_trigger(dag_id: str) -> Any:
    return lambda self, *, method, details, **asked: method == "GET" or details.id == dag_id


@pytest.mark.usefixtures("offers")
def test_what_one_may_not_trigger_is_off_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Everything, "is_authorized_dag", may_read_all_and_trigger("cluster_replace"))
    text = visit("/?node=worker-0", picture()).text
    assert buttons(text) == {
        **dict.fromkeys(
            ("Drain", "Power down", "Run a check", "Move GPUs or steer by cluster_shift", "Cancel jobs"), False
        ),
        "Approve moves": False,
        "Replace machine": True,
    }
    assert "You may not trigger cluster_drain, cluster_power_down." in text


@pytest.mark.parametrize(
    ("granted", "off"),
    [
        (("PUT", DagAccessEntity.HITL_DETAIL), "trigger"),
        (("POST", DagAccessEntity.RUN), "approve moves of"),
    ],
)
def test_moves_are_approved_by_the_right_to_approve(
    offers: dict[str, Offer], monkeypatch: pytest.MonkeyPatch, granted: tuple[str, DagAccessEntity], off: str
) -> None:
    found = [offers["shift"], replace(offers["approve"], dag_id="cluster_shift")]
    monkeypatch.setattr(actions, "find_offers", lambda connection: found)

    def may(self: Everything, *, method: str, access_entity: DagAccessEntity | None = None, **asked: Any) -> bool:
        return method == "GET" or (method, access_entity) == granted

    monkeypatch.setattr(Everything, "is_authorized_dag", may)
    text = visit("/", picture()).text
    assert re.findall(r"You may not .*?cluster_shift.", text) == [
        f'You may not {off} the DAG cluster_shift"',
        f"You may not {off} cluster_shift.",
    ]
    assert ("/required_actions" in text) == (off == "trigger")


def test_the_form_of_a_dag_that_one_may_not_trigger_is_not_shown(offers: dict[str, Offer], rights: Everything) -> None:
    rights.dags = frozenset()
    assert visit("/action?connection=c&dag_id=cluster_drain&nodes=worker-0", picture()).status_code == 403


def test_a_dag_that_one_may_not_read_is_not_offered(offers: dict[str, Offer], rights: Everything) -> None:
    rights.dags = frozenset({"cluster_drain"})
    text = visit("/?node=worker-0", picture()).text
    assert buttons(text) == {"Drain": True}
    assert "cluster_shift" not in text


@pytest.mark.usefixtures("offers")
def test_of_very_many_nodes_that_are_not_there_some_are_named() -> None:
    said = visit("/action?connection=c&dag_id=cluster_drain&nodes=lost-[0-99999]", picture()).text
    assert "lost-19, 99980 more." in said


@pytest.mark.usefixtures("offers")
@pytest.mark.parametrize("of", ["job_ids=9_[3-1]", "job_ids=nine", "nodes=worker-[3-"])
def test_what_names_no_node_or_job_is_told_as_unknown(of: str) -> None:
    waiting = Job(id=JobId.parse("9_[0-3]"), state=JobState.parse("PENDING"))
    said = visit(f"/action?connection=c&dag_id=cluster_cancel&{of}", picture(jobs=(waiting,)))
    assert f"Not in the picture of the cluster: {of.partition('=')[2]}." in said.text


def test_nothing_is_changed_by_the_page_itself() -> None:
    methods = {method for route in make_app().routes for method in getattr(route, "methods", None) or ()}
    assert methods <= {"GET", "HEAD"}


@pytest.mark.usefixtures("offers")
def test_a_dag_that_is_no_action_has_no_form() -> None:
    assert visit("/action?connection=c&dag_id=train", picture()).status_code == 404


def test_a_paused_dag_is_led_to_and_one_without_any_is_told_how(
    offers: dict[str, Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Offer(kind="drain", dag_id="cluster_drain", is_paused=True)
    monkeypatch.setattr(actions, "find_offers", lambda connection: [paused])
    text = visit("/?node=worker-0", picture()).text
    assert 'href="/af/dags/cluster_drain" title="The DAG cluster_drain is paused: unpause it first"' in text
    # A form that was open before, or whose address was kept, would begin a run when the DAG is unpaused.
    said = visit("/action?connection=c&dag_id=cluster_drain&nodes=worker-0", picture()).text
    assert '<a class="airflow" href="/af/dags/cluster_drain">cluster_drain</a> is paused: unpause it first' in said
    assert '<button class="go" disabled>' in said
    monkeypatch.setattr(actions, "find_offers", lambda connection: [])
    assert "<code>action_dags()</code> in a DAG file adds them" in visit("/", picture()).text


@pytest.mark.usefixtures("offers")
def test_what_could_not_be_read_is_not_taken_for_empty() -> None:
    path = "/action?connection=c&dag_id=cluster_power_down&nodes=worker-0"
    assert "Not read, so not told in full: jobs." in visit(path, picture(jobs=(), failures={"jobs": "away"})).text
    assert "Not read, so not told in full: the cluster." in visit(path, None).text


@pytest.mark.usefixtures("offers")
def test_the_form_tells_what_is_lost_and_whose_it_is() -> None:
    text = visit("/action?connection=c&dag_id=cluster_power_down&nodes=worker-0,worker-9", picture()).text
    assert "worker-0 is idle." in text
    assert "Job 8 (train &rsaquo; fit) runs on worker-0" in text
    assert "with <em>force</em> they are requeued or lost" in text
    assert "Not in the picture of the cluster: worker-9." in text
    assert 'data-runs="/af/api/v2/dags/cluster_power_down/dagRuns"' in text
    cancel = visit("/action?connection=c&dag_id=cluster_cancel&job_ids=8", picture()).text
    assert "and ends: its task fails, and Airflow may retry it" in cancel


def test_what_is_left_over_is_told_with_its_owner(offers: dict[str, Offer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "dags_at_work", lambda dag_ids: {dag: dag == "night" for dag in dag_ids})
    drained = Node(name="worker-2", state=NodeState.parse("IDLE+DRAIN"), reason="airflow:train: new driver")
    kept = Reservation(name="airflow-handover-x", nodelist="worker-2", comment=f"{HOSTILE} (night)")
    seen = picture(nodes=(drained,), reservations=(kept,))
    text = visit("/", seen).text
    of_drain = "/action?dag_id=cluster_undrain&connection=c&nodes=worker-2&drain_owner=train"
    of_reservation = f"/action?dag_id=cluster_release&connection=c&name={kept.name}"
    for path in (of_drain, of_reservation):
        assert f'href="/af/soperator{path.replace("&", "&amp;")}"' in text
    said = visit(of_drain, seen).text
    words = "No run of the DAG train is under way. It may have meant them to stay drained."
    assert f'<li class="failure">{words}</li>' in said
    monkeypatch.setattr(actions, "dags_at_work", lambda dag_ids: {"night": True})
    assert "This Airflow has no DAG train: its owner may need it." in visit(of_drain, seen).text
    mine = replace(kept, name="airflow-mine")
    other = visit(of_reservation.replace(kept.name, mine.name), picture(reservations=(mine,))).text
    assert "is deleted" not in other
    assert "Nothing that is left over is called airflow-mine." in other
    unread = picture(reservations=(), failures={"reservations": "no answer"})
    assert "Nothing that is left over" not in visit(of_reservation, unread).text
    said = visit(of_reservation, seen).text
    assert '<li class="failure">A run of the DAG night is under way, and may need it.</li>' in said
    assert "<script>alert" not in said


@pytest.mark.usefixtures("offers")
def test_old_files_are_released_together_and_the_form_names_them() -> None:
    folder = "/root/.airflow-soperator"
    seen = picture(files=tuple(f"{folder}/{number:012}.zip" for number in range(30)))
    of_files = f"/action?dag_id=cluster_release&connection=c&name={folder}"
    assert f'href="/af/soperator{of_files.replace("&", "&amp;")}"' in visit("/", seen).text
    said = visit(of_files, seen).text
    assert f"<li>The file {folder}/000000000000.zip is removed.</li>" in said
    assert "<li>10 more files.</li>" in said
    assert "No job in the queue is of these calls." in said
    gone = visit(of_files, picture()).text
    assert f'<li class="failure">Nothing that is left over is called {folder}.</li>' in gone


@pytest.mark.usefixtures("offers")
@pytest.mark.parametrize(
    "of", ["nodes=worker-1", "job_ids=7", f"nodes={HOSTILE}", f"job_ids={HOSTILE}", f"reason={HOSTILE}"]
)
def test_hostile_texts_in_a_form_stay_texts(of: str) -> None:
    for kind in ("drain", "cancel"):
        said = visit(f"/action?connection=c&dag_id=cluster_{kind}&{of}", picture())
        assert said.status_code == 200
        assert "<script>alert" not in said.text
        assert 'onerror="' not in said.text


def test_each_kind_of_parameter_has_its_field(offers: dict[str, Offer], monkeypatch: pytest.MonkeyPatch) -> None:
    schemas: dict[str, dict[str, Any]] = {
        "reason": {"type": "string", "minLength": 1, "pattern": "^[a-z]*$"},
        "mode": {"enum": [None, "a'b\"<"], "values_display": {"null": "leave it"}},
        "until": {"type": ["null", "string"], "format": "date-time"},
        "count": {"type": ["null", "integer"]},
        "force": {"type": "boolean"},
        "more": {"type": "object"},
    }
    values = {"force": True, "more": {"a": "<b>"}, "count": 3}
    fields = [FormField(name=name, value=values.get(name), schema=schema) for name, schema in schemas.items()]
    monkeypatch.setattr(actions, "fields_of", form(*fields))
    text = visit("/action?connection=c&dag_id=cluster_drain", picture()).text
    assert 'data-form="text" value="" required pattern="^[a-z]*$"' in text
    assert "<option value='null' selected>leave it</option>" in text
    assert '<option value=\'"a\\u0027b\\"\\u003c"\'>a&#39;b&#34;&lt;</option>' in text
    assert 'type="datetime-local" name="until"' in text
    # What is typed has no zone, and the browser adds its own.
    assert '<label for="action-3">until (by the clock of this browser)</label>' in text
    assert 'type="number" name="count" id="action-4" data-form="number" data-nullable value="3"' in text
    assert 'type="checkbox" name="force" id="action-5" data-form="boolean" checked' in text
    assert "{&#34;a&#34;" not in text
    assert '{"a": "\\u003cb\\u003e"}</textarea>' in text
