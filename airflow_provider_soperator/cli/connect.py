"""The command ``connection``: asks for what a connection needs, tests it, and prints it for the environment."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import sys
from argparse import Namespace
from typing import Any

from airflow_provider_soperator.cli.terminal import answer, command, show, tell
from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.hooks.forms import NEBIUS, SOPERATOR, SSH_EXTRAS, TRANSPORTS
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.hooks.slurm import SlurmHook

#: Fields that Airflow has for each connection.
_OWN = ("host", "port", "login", "password")
#: What is asked for, by transport; the rest of the fields is optional.
_ASKED = {
    "ssh": ("host", "port", "login", "key_file", "host_key", "kubernetes_conn_id"),
    "kubernetes": ("kubernetes_conn_id", "login", "namespace", "cluster"),
    "rest": ("rest_url", "login", "jwt_secret", "ssh_conn_id"),
    "nebius": ("password", "credentials_file", "lease_conn_id", "lease_namespace"),
}


@command
def connection(args: Namespace) -> None:
    """Print a connection; ends with status 1 if it does not work."""
    form, hook = (NEBIUS, NebiusHook) if args.type == "nebius" else (SOPERATOR, SlurmHook)
    labels, examples = form.behaviour["relabeling"], form.behaviour["placeholders"]
    known = {name: f"{labels.get(name, name.capitalize())} ({examples.get(name, 'optional')})" for name in _OWN}
    known |= {field.name: field.help for field in form.fields}
    given = dict(one.partition("=")[::2] for one in args.fields)
    for name in given:
        if name not in known and name not in SSH_EXTRAS:
            raise ValueError(f"a connection has no field {name}: {name_remedy(name, known)}")
    secrets = {field.name for field in form.fields if field.is_secret} | {"password"}
    conn_id = args.conn_id or hook.default_conn_name
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if not re.fullmatch(r"\w+", variable, re.ASCII):
        remedy = "choose an id of letters, digits and _, or add it by `airflow connections add`"
        raise ValueError(f"no shell takes a variable {variable}: {remedy}")
    if not given:
        given = _answers(args, known, secrets)
    own: dict[str, Any] = {name: given.pop(name) for name in _OWN if given.get(name)}
    if "port" in own:
        if not own["port"].isdecimal():
            raise ValueError(f"the port is {own['port']}: give a number")
        own["port"] = int(own["port"])
    said = json.dumps({"conn_type": form.conn_type, **own, "extra": {k: v for k, v in given.items() if v}})
    # What is in the environment comes before Airflow's database.
    os.environ[variable] = said
    works: bool | str = "not tested"
    if not args.no_test:
        works, message = hook(conn_id).test_connection()
        tell(message)
    show(args, [{"variable": variable, "value": said, "works": works}], f"{variable}={shlex.quote(said)}")
    sys.exit(not works)


def _answers(args: Namespace, known: dict[str, str], secrets: set[str]) -> dict[str, str]:
    if not sys.stdin.isatty():
        raise ValueError("no field is given: give some, such as host=login.example.com login=airflow")
    transport = args.type
    if transport != "nebius":
        ways = [way for way in _ASKED if way in TRANSPORTS]
        transport = _answer("transport", f"How the cluster is reached: {', '.join(ways)}", set())
        if transport not in ways:
            raise ValueError(f"no questions for the transport {transport!r}: {name_remedy(transport, TRANSPORTS)}")
    return {name: _answer(name, known[name], secrets) for name in _ASKED[transport]}


def _answer(name: str, said: str, secrets: set[str]) -> str:
    tell(said)
    return (getpass.getpass if name in secrets else answer)(f"{name}: ").strip()
