"""Who calls, and the projects that there are."""

from __future__ import annotations

from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.iam.v1 import GetProfileRequest, GetProfileResponse, ServiceAccount, ServiceAccountProfile
from nebius.api.nebius.iam.v2 import GetProjectRequest, Project, ProjectSpec

from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.errors import not_found
from sandbox.nebius.rpc import CALLER, Headers, Method

SERVICE = "iam"


class Profiles:
    """ProfileService: every token of a sandbox is a service account's."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get}

    def get(self, request: GetProfileRequest, headers: Headers) -> GetProfileResponse:
        account = headers[CALLER]
        name = account.partition("-e00")[2]
        metadata = ResourceMetadata(id=account, parent_id=self._catalogue.project, name=name)
        return GetProfileResponse(service_account_profile=ServiceAccountProfile(info=ServiceAccount(metadata=metadata)))


class Projects:
    """ProjectService, the part that reads."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get}

    def get(self, request: GetProjectRequest, headers: Headers) -> Project:
        own = self._catalogue
        if request.id not in own.projects:
            raise not_found(SERVICE, "project", request.id)
        metadata = ResourceMetadata(id=request.id, parent_id=own.tenant, name=request.id.partition("-e00")[2])
        return Project(metadata=metadata, spec=ProjectSpec(region=own.region))
