"""The files of a sandbox that do not depend on Soperator's objects: those of accounting, its database and sshd."""

from __future__ import annotations

from sandbox.settings import LOOPBACK, Settings

JWT_KEY = "/var/spool/slurmctld/jwt_hs256.key"
#: Where the jobs of active checks write to.
CHECK_OUTPUTS = "/opt/soperator-outputs/slurm_jobs"
DATABASE = "slurm_acct_db"
DATABASE_FILE = "etc/mysql/sandbox.sql"


def slurmdbd_conf(settings: Settings) -> str:
    return "\n".join(
        [
            "AuthType=auth/munge",
            "AuthAltTypes=auth/jwt",
            f"AuthAltParameters=jwt_key={JWT_KEY}",
            "CommunicationParameters=NoInAddrAny",
            "DbdHost=localhost",
            f"DbdAddr={LOOPBACK}",
            f"DbdPort={settings.ports.slurmdbd}",
            "SlurmUser=root",
            "PidFile=/run/slurmdbd.pid",
            "LogFile=/var/log/slurm/slurmdbd.log",
            # MariaDB knows root by its socket; there is no password to keep.
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            f"StorageLoc={DATABASE}",
            "PurgeJobAfter=12months",
            "",
        ]
    )


def mariadb_conf() -> str:
    """A database for one short life: small, reached by its socket only, in no hurry to reach the disk."""
    return (
        # Newer ones make a key and a certificate at each start, which nothing would use.
        "[mariadbd]\nskip-networking\nskip-ssl\ninnodb_buffer_pool_size=128M\ninnodb_log_file_size=64M\n"
        # From 11.6 on it is on, and slurmdbd ends when two of its writes meet, mostly at a full hour, when it sums up.
        "loose_innodb_snapshot_isolation=OFF\n"
        # A slurmdbd that makes its database itself ends at its first query, with the client library from 11.8.9 on.
        f"init_file=/{DATABASE_FILE}\n"
        "innodb_lock_wait_timeout=900\ninnodb_flush_log_at_trx_commit=2\nmax_allowed_packet=16M\n"
    )


def sshd_config(settings: Settings) -> str:
    """The login node's sshd: keys only, and the stock limits on sessions and start-ups that clients must live with."""
    return "\n".join(
        [
            f"Port {settings.ports.ssh}",
            f"ListenAddress {LOOPBACK}",
            "HostKey /etc/ssh/ssh_host_ed25519_key",
            "PidFile /run/sshd.pid",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "AllowTcpForwarding yes",
            "X11Forwarding no",
            "PrintMotd no",
            "UseDNS no",
            "MaxSessions 10",
            "MaxStartups 10:30:100",
            # All clients have one address here, so one with a wrong key would shut out all others for a while; and the
            # OpenSSH of Soperator's login node is too old to do so.
            "PerSourcePenalties no",
            "ClientAliveInterval 3600",
            "Subsystem sftp internal-sftp",
            "",
        ]
    )


def all_files(settings: Settings) -> dict[str, str]:
    """Every configuration file of a new sandbox, by its path in the root; those of its Slurm are the operator's."""
    return {
        "etc/slurm/slurmdbd.conf": slurmdbd_conf(settings),
        "etc/ssh/sshd_config": sshd_config(settings),
        "etc/mysql/mariadb.conf.d/90-sandbox.cnf": mariadb_conf(),
        DATABASE_FILE: f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n",
        "etc/hostname": "controller-0\n",
    }
