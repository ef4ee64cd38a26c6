"""Permissions that come and go while a cluster is used. Brokers and clients are told apart by their hosts."""

from __future__ import annotations

from typing import Final

from millrace.security.acls.binding import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from millrace.sim.clients.acls import create_acls, delete_acl
from millrace.sim.clients.guest import GUARDED, NEEDS, Guest
from millrace.sim.faults import Fault
from millrace.sim.history import PermissionGiven, PermissionTaken
from millrace.sim.playing import side_by_side
from millrace.sim.run import Run, Scenario

SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Until the first permissions are made there is somebody who can make them.
    "allow.everyone.if.no.acl.found": "true",
}
GUESTS_COUNT: Final = 2
EVERYBODY: Final = "User:*"
NOBODY: Final = "User:ANONYMOUS"


def with_permissions(*kinds: Fault) -> Scenario:
    """Guests lose and regain permissions, beside these faults."""

    async def play(run: Run) -> None:
        await run.by_admin(create_acls(run.admin, _first_permissions(run)))
        await run.create_topic(GUARDED, partitions=1)
        # What is in it is nobody's business.
        del run.topics[GUARDED]
        guests: dict[str, str] = {}
        processes = []
        for number in range(1, GUESTS_COUNT + 1):
            client, process = run.cluster.client(f"guest-{number}")
            guests[client.name] = process.host
            processes.append(process)
            _ = run.cluster.run_in(process, Guest(client, pause_s=0.2).run())

        async def take_and_give_back(run: Run) -> None:
            await _take_and_give_back(run, guests)

        await side_by_side(take_and_give_back, take_and_give_back, *kinds, every_s=(0.2, 3.0))(run)
        for process in processes:
            run.cluster.end_client(process)

    return play


def _first_permissions(run: Run) -> list[Acl]:
    """All but guests may do as before; only brokers and the administrator may touch the cluster."""
    hosts = [*(node.host for node in run.nodes), run.admin_process.host]
    return [
        *(_acl(ResourceType.CLUSTER, CLUSTER_NAME, EVERYBODY, host, Operation.ALL) for host in hosts),
        *(
            _acl(kind, "*", EVERYBODY, "*", Operation.ALL)
            for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        ),
    ]


async def _take_and_give_back(run: Run, guests: dict[str, str]) -> None:
    guest = run.chance.choice(list(guests))
    what = run.chance.choice(list(NEEDS))
    key = f"{guest} {what}"
    if key in run.in_use:
        return
    run.in_use[key] = None
    operation, kind, name = NEEDS[what]
    denial = _acl(kind, name, NOBODY, guests[guest], operation, Permission.DENY)
    run.cluster.note(f"{guest} may not {what}")
    await run.by_admin(create_acls(run.admin, [denial]))
    history, admin = run.cluster.history, run.admin
    history.add(PermissionTaken(at=admin.now(), guest=guest, what=what))
    await run.sleep(1.0, 8.0)
    history.add(PermissionGiven(at=admin.now(), guest=guest, what=what))
    run.cluster.note(f"{guest} may {what} again")
    await run.by_admin(delete_acl(run.admin, denial))
    del run.in_use[key]


def _acl(
    kind: ResourceType,
    name: str,
    principal: str,
    host: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, principal, host, operation, permission)
