"""What accounting knows of users: what they may do, charge and use, and what they have had of the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Association:
    """What a user may charge to an account, in one partition or (empty) in all of them."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UserRights:
    """What accounting lets a user do.

    >>> rights = UserRights(user="ada", associations=(Association("ml", qos=("normal", "high")), Association("bio")))
    >>> rights.accounts, rights.qos
    (('ml', 'bio'), ('normal', 'high'))
    """

    user: str
    #: ``None``, ``Operator`` or ``Administrator``.
    admin_level: str = "None"
    default_account: str = ""
    associations: tuple[Association, ...] = ()
    is_known: bool = True

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.account for one in self.associations))

    @property
    def qos(self) -> tuple[str, ...]:
        """Those of all accounts together."""
        return tuple(dict.fromkeys(name for one in self.associations for name in one.qos))

    @property
    def may_change_nodes(self) -> bool:
        """Power, drain and reserve nodes. root and SlurmUser may too, whatever accounting says."""
        return self.admin_level == "Administrator" or self.user == "root"


@dataclass(frozen=True, kw_only=True)
class Share:
    """What an account, or a user in one, is to have of the cluster and has had of it lately, as ``sshare`` shows it.

    Usage is weighted, and what is long past counts less (PriorityDecayHalfLife). What is *normal* is a part of the
    whole cluster, 0 to 1.
    """

    account: str
    #: Empty for the account itself.
    user: str = ""
    partition: str = ""
    #: None for those who have none of their own: the root of the tree, and ``fairshare=parent``.
    shares: int | None = None
    normal_shares: float | None = None
    usage: int = 0
    normal_usage: float | None = None
    #: Of all that the account above has used, or of the cluster, as PriorityFlags say.
    effective_usage: float | None = None
    #: 1 for whoever comes first, 0 for the last; of users only.
    fair_share: float | None = None
    #: Above 1 for who has had less than is due among those beside it, infinite for who has had nothing.
    level: float | None = None
