"""Airflow's forms for the connections of this provider; their fields are the keys of the extra.

Imports nothing heavy: Airflow reads it in each of its processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_soperator.hooks.connections import ConnectionForm, Field
from airflow_provider_soperator.slurm.links import PLACEHOLDERS

#: Transports to a cluster, and their names in the form.
TRANSPORTS: Mapping[str, str] = {
    "ssh": "ssh: commands on the login node",
    "kubernetes": "kubernetes: commands in the login pod",
    "rest": "rest: slurmrestd",
    "native": "native: pyslurm on this machine",
    "local": "local: commands on this machine",
}
#: Ways to its files, for transports that cannot reach them.
FILE_WAYS: Mapping[str, str] = {
    "ssh": "ssh: on the login node",
    "kubernetes": "kubernetes: in the login pod",
    "local": "local: this machine has them at the same paths",
    "none": "none: no files are needed",
}
#: Templates of links, and their help in the form.
LINKS: Mapping[str, str] = {
    "job_link": "Where the button Job of a task leads to, such as https://portal.example.com/jobs/{job_id}.",
    "output_link": "Likewise for the job's output, such as https://portal.example.com/files{output}.",
    "grafana_link": "Likewise for measurements, such as "
    "https://grafana.example.com/d/gpus?var-node={nodes}&from={start_ms}&to={end_ms}.",
}
_PLACEHOLDERS = f"It may name {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}."

_SOPERATOR_FIELDS = (
    Field(
        "transport",
        "Transport",
        "How the cluster is reached. If not chosen: slurmrestd if its address is set, else the login node if a host or "
        "an SSH connection is set, else the login pod.",
        choices=TRANSPORTS,
    ),
    Field(
        "ssh_conn_id",
        "SSH connection",
        "Id of a connection of type SSH. Its host, user, key and host key are used; leave those of this one empty.",
    ),
    Field("key_file", "Private key file", "Path of the private key, the same on all Airflow workers and triggerers."),
    Field(
        "private_key",
        "Private key",
        "The private key itself, in place of a file. It may be pasted with all its lines.",
        is_secret=True,
        excludes="key_file",
    ),
    Field(
        "private_key_passphrase",
        "Passphrase",
        "Of the key above, if it has one. A key file is opened by the password of the connection.",
        is_secret=True,
    ),
    Field(
        "host_key",
        "Host key",
        "The login node's public key, a line that `ssh-keyscan -t ed25519 HOST` prints. If empty, the known_hosts file "
        "of Airflow workers and triggerers counts.",
    ),
    Field(
        "no_host_key_check",
        "Skip the host key check",
        "Trusts any server that answers, and sends it the commands. Only for networks safe from interception.",
        is_flag=True,
        excludes="host_key",
    ),
    Field(
        "kubernetes_conn_id",
        "Kubernetes connection",
        "Id of a connection of type Kubernetes. Slurm's commands run in the login pod, by exec: as the user above, or "
        "as root.",
    ),
    Field("namespace", "Namespace", "Kubernetes namespace of the SlurmCluster. If empty: soperator."),
    Field("cluster", "SlurmCluster", "Its name, needed only if the namespace has several."),
    Field(
        "rest_url",
        "slurmrestd address",
        "Such as http://CLUSTER-rest-svc.soperator.svc:6820, if the host above is not the address itself.",
    ),
    Field(
        "jwt_token",
        "JWT",
        "A token for slurmrestd, as `scontrol token` prints it. It must be replaced when it expires.",
        is_secret=True,
    ),
    Field(
        "jwt_secret",
        "JWT key",
        "In place of a token: the key in Secret CLUSTER-rest-jwt-key, in base64, from which tokens are made as needed. "
        "With neither, tokens are fetched over the SSH or the Kubernetes connection.",
        is_secret=True,
        excludes="jwt_token",
    ),
    Field(
        "files_via",
        "Files",
        "How scripts and output are reached, as slurmrestd does not lead to them. If not chosen: the SSH or the "
        "Kubernetes connection, whichever is set.",
        choices=FILE_WAYS,
    ),
    *(
        Field(name, f"{name.removesuffix('_link').capitalize()} link", f"{help} {_PLACEHOLDERS}")
        for name, help in LINKS.items()
    ),
)

SOPERATOR = ConnectionForm(
    conn_type="soperator",
    hook_class="airflow_provider_soperator.hooks.slurm.SlurmHook",
    hook_name="Soperator (Slurm)",
    fields=_SOPERATOR_FIELDS,
    behaviour={
        "hidden_fields": ["schema"],
        "relabeling": {"host": "Login node or slurmrestd", "login": "User"},
        "placeholders": {"host": "login.example.com", "login": "root", "port": "22"},
    },
    elsewhere=dict.fromkeys(("proxy", "jump"), "for SSH set ProxyCommand in ~/.ssh/config of Airflow's user"),
)

#: Fields of the SSH provider, in a connection that is used for SSH as well.
SSH_EXTRAS = (
    "allow_host_key_change",
    "ciphers",
    "cmd_timeout",
    "compress",
    "conn_timeout",
    "disabled_algorithms",
    "ignore_hostkey_verification",
    "look_for_keys",
)

_NEBIUS_FIELDS = (
    Field(
        "private_key",
        "Service account's key",
        "In place of a token: the JSON of a service account's credentials, or its private key as PEM.",
        is_secret=True,
    ),
    Field(
        "credentials_file",
        "Credentials file",
        "In place of both: path of a file, the same on all Airflow workers and triggerers, with that JSON, that key, "
        "or a token that something else keeps fresh.",
    ),
    Field("account_id", "Service account", "Id of the service account, needed beside a key as PEM."),
    Field("public_key_id", "Public key", "Id of its public key, likewise."),
    Field(
        "lease_conn_id",
        "Kubernetes connection for leases",
        "The cluster that keeps who moves a capacity block: the same one for all who move it, in every Airflow.",
    ),
    Field("lease_namespace", "Namespace for leases", "In that cluster; if empty: default."),
    Field(
        "insecure", "Without TLS", "Sends everything, the token too, as plain text. Only for a sandbox.", is_flag=True
    ),
)

NEBIUS = ConnectionForm(
    conn_type="nebius",
    hook_class="airflow_provider_soperator.hooks.nebius.NebiusHook",
    hook_name="Nebius",
    fields=_NEBIUS_FIELDS,
    behaviour={
        "hidden_fields": ["schema", "login"],
        "relabeling": {"host": "API endpoint", "password": "Access token"},
        "placeholders": {"host": "if empty: api.nebius.cloud", "port": "443"},
    },
)
