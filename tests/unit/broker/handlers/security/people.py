"""Who asks the broker of the tests. `User:root` may do everything, the others what a permission allows."""

from __future__ import annotations

from typing import Final

from millrace.security.acls.binding import CLUSTER_NAME, Acl, Operation, ResourceType
from millrace.security.principals import Identity, user
from tests.unit.security.acls.models import acl

ROOT: Final = Identity(principal=user("root"), mechanism="PLAIN")
ALICE: Final = Identity(principal=user("alice"), mechanism="PLAIN")
BOB: Final = Identity(principal=user("bob"), mechanism="PLAIN")
CAROL: Final = Identity(principal=user("carol"), mechanism="PLAIN")


def on_cluster(operation: Operation, who: Identity = ALICE) -> Acl:
    return acl(CLUSTER_NAME, operation, str(who.principal), resource_type=ResourceType.CLUSTER)
