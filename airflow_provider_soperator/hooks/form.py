"""The fields of a Soperator connection: what Airflow's form shows of them, and what may stand in the extra.

Imports nothing: Airflow reads it in each of its processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: How a cluster can be reached.
TRANSPORTS = ("ssh", "kubernetes", "rest", "native", "local")
#: How its files can be reached, where the transport does not lead to them.
FILE_WAYS = ("ssh", "kubernetes", "local", "none")


@dataclass(frozen=True)
class Field:
    """One field of the extra. Names with "secret" or "token" in them are masked by Airflow wherever it shows them."""

    name: str
    label: str
    help: str
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    is_flag: bool = False


FIELDS = (
    Field(
        "transport",
        "Transport",
        "How the cluster is reached. Left empty it follows from the rest: an http(s) host is slurmrestd, any other a "
        "login node; without a host, the SSH or the Kubernetes connection, whichever is set.",
        choices=TRANSPORTS,
    ),
    Field(
        "ssh_conn_id",
        "SSH connection",
        "Take host, user, key and host key from this connection of type SSH, in place of the fields of this one.",
    ),
    Field("key_file", "Private key file", "Path to the private key, readable by workers and triggerers."),
    Field("private_key", "Private key", "The private key itself, in place of a file.", is_secret=True),
    Field("private_key_passphrase", "Passphrase", "Of the private key, if it has one.", is_secret=True),
    Field(
        "host_key",
        "Host key",
        "The login node's public key, as `ssh-keyscan -t ed25519 HOST` prints it. Else known_hosts counts.",
    ),
    Field(
        "no_host_key_check",
        "Skip the host key check",
        "Whoever answers is trusted. Only for a network in which nobody can stand between.",
        is_flag=True,
    ),
    Field(
        "kubernetes_conn_id",
        "Kubernetes connection",
        "Run Slurm's commands in the login pod, by exec, through this connection of type Kubernetes.",
    ),
    Field("namespace", "Namespace", "Kubernetes namespace of the SlurmCluster. Left empty: soperator."),
    Field("cluster", "SlurmCluster", "Its name, where the namespace has several."),
    Field("rest_url", "slurmrestd", "Its address, such as http://CLUSTER-rest-svc.soperator.svc:6820."),
    Field("jwt_token", "JWT", "A token for slurmrestd, from `scontrol token`. It ends at its time.", is_secret=True),
    Field(
        "jwt_secret",
        "JWT key",
        "The key in secret CLUSTER-rest-jwt-key, in base64: tokens are made from it as they are needed. With neither, "
        "they are fetched over the SSH or the Kubernetes connection.",
        is_secret=True,
    ),
    Field(
        "files_via",
        "Files",
        "How scripts and output are reached where slurmrestd does not lead to them. Left empty: the SSH or Kubernetes "
        "connection, whichever is set. local: this machine has the cluster's root at the same paths.",
        choices=FILE_WAYS,
    ),
)

#: What the SSH provider understands besides, in a connection that is one for SSH, too.
SSH_EXTRAS = (
    "allow_host_key_change",
    "ciphers",
    "cmd_timeout",
    "compress",
    "conn_timeout",
    "disabled_algorithms",
    "ignore_hostkey_verification",
    "known_hosts",
    "look_for_keys",
    "passphrase",
)


def connection_type() -> dict[str, Any]:
    """The entry of ``connection-types`` in the provider's description."""
    return {
        "connection-type": "soperator",
        "hook-class-name": "airflow_provider_soperator.hooks.slurm.SlurmHook",
        "hook-name": "Soperator (Slurm)",
        "conn-fields": {field.name: _described(field) for field in FIELDS},
        "ui-field-behaviour": {name.replace("_", "-"): value for name, value in behaviour().items()},
    }


def behaviour() -> dict[str, Any]:
    """What becomes of the fields that all connections have."""
    return {
        "hidden_fields": ["schema"],
        "relabeling": {"host": "Login node or slurmrestd", "login": "User"},
        "placeholders": {"host": "login.example.com", "login": "root", "port": "22"},
    }


def _described(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["boolean" if field.is_flag else "string", "null"]}
    if field.choices:
        schema["enum"] = [None, *field.choices]
    if field.is_secret:
        schema["format"] = "password"
    return {"label": field.label, "description": field.help, "schema": schema}


def widgets() -> dict[str, Any]:
    """The same fields for Airflow 3.1, which does not take them from the provider's description."""
    from wtforms import BooleanField, PasswordField, StringField
    from wtforms.validators import Optional, any_of

    def widget(field: Field) -> Any:
        kind = BooleanField if field.is_flag else PasswordField if field.is_secret else StringField
        choices = [any_of(["", *field.choices])] if field.choices else []
        return kind(field.label, description=field.help, validators=[Optional(), *choices])

    return {field.name: widget(field) for field in FIELDS}
