"""ConfigMaps of a namespace, which others read."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator.kubernetes.objects import MANAGER, Objects
from airflow_provider_soperator.transports.kubernetes_errors import PATIENCE, explained, is_missing

_RIGHTS = "get, create and patch on configmaps,"
_FOR_NOW = "see whether the API is not overloaded"


async def read_config_map(objects: Objects, name: str) -> dict[str, str] | None:
    """Its data; None if it is not there."""
    with explained(f"read ConfigMap {name} in namespace {objects.namespace}", _RIGHTS, _FOR_NOW):
        try:
            found = await _api(objects).read_namespaced_config_map(name, objects.namespace, _request_timeout=PATIENCE)
        except Exception as error:
            if is_missing(error):
                return None
            raise
    return dict(found.data or {})


async def apply_config_map(objects: Objects, name: str, data: dict[str, str]) -> None:
    """These keys are so, whether it was there or not; others stay."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    with explained(f"write ConfigMap {name} in namespace {objects.namespace}", _RIGHTS, _FOR_NOW):
        await _api(objects).patch_namespaced_config_map(
            name,
            objects.namespace,
            body,
            field_manager=MANAGER,
            # Whoever wrote these keys before did so for others to change them: the recipe leaves the ConfigMaps out.
            force=True,
            _content_type="application/apply-patch+yaml",
            _request_timeout=PATIENCE,
        )


def _api(objects: Objects) -> Any:
    import kubernetes_asyncio.client

    return kubernetes_asyncio.client.CoreV1Api(objects.client)
