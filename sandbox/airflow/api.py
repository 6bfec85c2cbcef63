"""Airflow's REST API, as far as one needs it to run a DAG and to see what becomes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import httpx

from sandbox.errors import SandboxError

#: States in which a task has come to rest.
ENDS = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
#: What else but the API server has to be well, as the API calls it.
_OTHERS = {"scheduler": "scheduler", "triggerer": "triggerer", "dag-processor": "dag_processor"}

#: How often something is asked for at the most.
_TRIES = 10

Json = dict[str, Any]


class AirflowApi:
    """The API of an Airflow that asks nobody for a login."""

    def __init__(self, url: str, timeout: float = 90) -> None:
        """``timeout``: seconds that an answer may take, by default more than it waits itself for its turn to write."""
        self.url = url
        self._client = httpx.Client(base_url=f"{url}/api/v2", timeout=timeout, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def is_healthy(self, component: str) -> bool:
        """Whether a component has given a sign of life lately."""
        try:
            health = self._client.get("/monitor/health").json()
        except httpx.TransportError:
            return False
        return component not in _OTHERS or health[_OTHERS[component]]["status"] == "healthy"

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Any answer, also one that says no."""
        return self._request("GET", path, **options)

    def call(self, method: str, path: str, **options: Any) -> Any:
        """What is answered, which must be a yes."""
        answer = self._request(method, path, **options)
        if not answer.is_success:
            raise SandboxError(f"Airflow: {method} {path}: {answer.status_code} {answer.text}", "")
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        for tries in range(_TRIES):
            try:
                self._log_in()
                answer = self._client.request(method, path, **options)
            except httpx.TransportError as error:
                # A busy machine takes its time. But what was to change something may have changed it.
                if isinstance(error, httpx.TimeoutException) and method == "GET" and tries < _TRIES - 1:
                    continue
                what = f"Airflow does not answer {method} {path} ({error})"
                raise SandboxError(what, "see whether its processes run") from error
            # SQLite has one writer at a time, and whoever has waited for too long is turned away.
            if answer.status_code != 500 or "Database error" not in answer.text:
                break
            time.sleep(0.5)
        return answer

    def _log_in(self) -> None:
        if "Authorization" not in self._client.headers:
            token = self._client.get(f"{self.url}/auth/token").json()["access_token"]
            self._client.headers["Authorization"] = f"Bearer {token}"

    def has_dag(self, dag_id: str, file: str, since: datetime | None = None) -> bool:
        """Whether the DAG of a file is known yet; raises what was found wrong with the file, or found since then."""
        for error in self.call("GET", "/importErrors")["import_errors"]:
            is_new = since is None or datetime.fromisoformat(error["timestamp"].replace("Z", "+00:00")) >= since
            if is_new and Path(error["filename"]).name == file:
                raise SandboxError(f"Airflow cannot import {file} ({error['stack_trace'].strip()})", "correct the file")
        return self.get(f"/dags/{dag_id}").status_code == 200

    def add_connections(self, uris: Mapping[str, str]) -> None:
        """Those of environment variables that it has not got; in its database its pages show and test them."""
        for variable, uri in uris.items():
            name, parts = variable.removeprefix("AIRFLOW_CONN_").lower(), urlsplit(uri)
            if self.get(f"/connections/{name}").status_code == 200:
                continue
            login, password = (unquote(part) if part else None for part in (parts.username, parts.password))
            where = {"host": parts.hostname, "port": parts.port, "login": login, "password": password}
            said = dict(parse_qsl(parts.query))
            # An empty one, too, would count as a secret that is too short to be masked.
            extra = said.get("__extra__") or (json.dumps(said) if said else None)
            self.call(
                "POST", "/connections", json={"connection_id": name, "conn_type": parts.scheme, "extra": extra, **where}
            )

    def trigger(self, dag_id: str, conf: Json) -> str:
        """Start a run of a DAG, and return its id."""
        run = self.call("POST", f"/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])


@dataclass(frozen=True)
class DagRun:
    """A run of a DAG. A task that is mapped has an index."""

    api: AirflowApi
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    @property
    def page(self) -> str:
        """Where a browser sees it."""
        return f"{self.api.url}/dags/{self.dag_id}/runs/{quote(self.run_id, safe=':')}"

    def state(self) -> str:
        return str(self.api.call("GET", self.path)["state"])

    def begun(self) -> datetime:
        return datetime.fromisoformat(self.api.call("GET", self.path)["start_date"].replace("Z", "+00:00"))

    def tasks(self) -> list[Json]:
        found: list[Json] = []
        # However many are asked for, Airflow gives a page.
        while True:
            page = self.api.call("GET", f"{self.path}/taskInstances", params={"limit": 100, "offset": len(found)})
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    def task(self, task_id: str, index: int = -1) -> Json:
        found: Json = self.api.call("GET", self._task(task_id) + (f"/{index}" if index >= 0 else ""))
        return found

    def events(self, task_id: str, index: int, number: int) -> list[Json]:
        """What a try of a task has logged."""
        answer = self.api.get(
            f"{self._task(task_id)}/logs/{number}",
            params={"map_index": index, "full_content": True},
            headers={"Accept": "application/json"},
        )
        if not answer.is_success:
            return [{"event": f"(no log: {answer.status_code} {answer.text})"}]
        return [{"event": event} if isinstance(event, str) else event for event in answer.json()["content"]]

    def log(self, task_id: str, index: int = -1, number: int | None = None) -> str:
        """The log of a task's newest try, or of another, a line for each event."""
        number = number or self.task(task_id, index)["try_number"]
        return "\n".join(line(event) for event in self.events(task_id, index, number))

    def xcom(self, task_id: str, index: int = -1, key: str = "return_value") -> Any:
        params = {"map_index": index, "deserialize": False, "stringify": False}
        return self.api.call("GET", f"{self._task(task_id)}/xcomEntries/{key}", params=params)["value"]

    def _task(self, task_id: str) -> str:
        return f"{self.path}/taskInstances/{task_id}"


def line(event: Json) -> str:
    """An event of a log with the exception in it, if there is one."""
    detail = "".join(
        f"\n{one.get('exc_type')}: {one.get('exc_value')}" for one in event.get("error_detail") or () if one
    )
    return str(event.get("event", "")) + detail
