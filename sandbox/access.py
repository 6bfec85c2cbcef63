"""The one file with all that a client of the sandbox needs, and the Airflow connections made from it."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sandbox.cloud import landscape
from sandbox.settings import CLUSTER, LOOPBACK, NAMESPACE, USER, Settings

#: Bearer tokens of the doubles. They guard nothing: they are there so that clients must send one.
KUBERNETES_TOKEN = "sandbox-kubernetes-token"
INFERENCE_TOKEN = "sandbox-inference-token"
#: On either Kubernetes API this one may read, and no more.
VIEWER_TOKEN = "sandbox-viewer-token"
NEBIUS_TOKEN = "sandbox-nebius-token"
#: What the kubeconfig of either cluster calls it.
KUBERNETES_CONTEXT = "sandbox"
INFERENCE_CONTEXT = "sandbox-inference"


def write(settings: Settings) -> dict[str, Any]:
    """Write the access file of a running sandbox and return what is in it."""
    contents = describe(settings)
    settings.paths.access.write_text(json.dumps(contents, indent=2) + "\n")
    return contents


def describe(settings: Settings) -> dict[str, Any]:
    paths, ports = settings.paths, settings.ports
    known_hosts = (paths.secrets / "known_hosts").read_text()
    facts: dict[str, Any] = {
        "name": settings.name,
        "cluster": CLUSTER,
        "slurm": settings.slurm,
        "soperator": settings.soperator,
        "ports": ports.services(),
        "ssh": {
            "host": LOOPBACK,
            "port": ports.ssh,
            "user": "root",
            "other_users": [USER],
            "key_file": str(paths.secrets / "id_ed25519"),
            "known_hosts": str(paths.secrets / "known_hosts"),
            "host_key": known_hosts.split(maxsplit=1)[1].strip(),
        },
        "rest": {
            "url": f"http://{LOOPBACK}:{ports.slurmrestd}",
            "user": "root",
            "jwt_key_file": str(paths.secrets / "jwt_hs256.key"),
        },
        "kubernetes": {
            "kubeconfig": str(paths.kubeconfig),
            "context": KUBERNETES_CONTEXT,
            "namespace": NAMESPACE,
            "server": f"https://{LOOPBACK}:{ports.kubernetes}",
            "token": KUBERNETES_TOKEN,
            "viewer_token": VIEWER_TOKEN,
        },
        "inference_kubernetes": {
            "kubeconfig": str(paths.inference_kubeconfig),
            "context": INFERENCE_CONTEXT,
            "namespace": landscape.INFERENCE_NAMESPACE,
            "server": f"https://{LOOPBACK}:{ports.inference_kubernetes}",
            "token": INFERENCE_TOKEN,
            "viewer_token": VIEWER_TOKEN,
        },
        "nebius": {
            "endpoint": f"{LOOPBACK}:{ports.nebius}",
            "token": NEBIUS_TOKEN,
            "insecure": True,
            "capacity_block_group": landscape.BLOCK_ID,
            "node_groups": {
                "training": landscape.TRAINING_GROUP,
                "inference": landscape.INFERENCE_GROUP,
                "remote_inference": landscape.REMOTE_INFERENCE_GROUP,
            },
        },
    }
    facts["prometheus"] = {"url": f"http://{LOOPBACK}:{ports.prometheus}"}
    facts["airflow_connections"] = connections(facts)
    return facts


#: A flag and not the text "true": each text of an extra counts as a secret in Airflow, which warns of short ones.
_NO_TLS = urlencode({"__extra__": json.dumps({"insecure": True})})


def connections(facts: dict[str, Any]) -> dict[str, str]:
    """Airflow connection URIs, by the environment variable that Airflow reads each from."""
    ssh, kubernetes, rest, nebius = facts["ssh"], facts["kubernetes"], facts["rest"], facts["nebius"]
    login = f"{ssh['user']}@{ssh['host']}:{ssh['port']}"
    shell = {"key_file": ssh["key_file"], "host_key": ssh["host_key"]}
    pods = {"kubernetes_conn_id": "kubernetes_default", "namespace": kubernetes["namespace"]}
    key = b64encode(Path(rest["jwt_key_file"]).read_bytes()).decode()
    tokens = {"rest_url": rest["url"], "jwt_secret": key, "ssh_conn_id": "ssh_default"}
    return {
        "AIRFLOW_CONN_SOPERATOR_DEFAULT": f"soperator://{login}/?{urlencode(shell)}",
        "AIRFLOW_CONN_SOPERATOR_KUBERNETES": f"soperator:///?{urlencode(pods)}",
        "AIRFLOW_CONN_SOPERATOR_REST": f"soperator://{rest['user']}@/?{urlencode(tokens)}",
        "AIRFLOW_CONN_SSH_DEFAULT": f"ssh://{login}/?{urlencode(shell)}",
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": _kubernetes(kubernetes),
        "AIRFLOW_CONN_KUBERNETES_INFERENCE": _kubernetes(facts["inference_kubernetes"]),
        "AIRFLOW_CONN_NEBIUS_DEFAULT": f"nebius://:{quote(nebius['token'])}@{nebius['endpoint']}/?{_NO_TLS}",
        "AIRFLOW_CONN_PROMETHEUS_DEFAULT": facts["prometheus"]["url"],
    }


def _kubernetes(cluster: dict[str, str]) -> str:
    extra = {
        "kube_config_path": cluster["kubeconfig"],
        "cluster_context": cluster["context"],
        "namespace": cluster["namespace"],
    }
    return f"kubernetes:///?{urlencode(extra)}"
