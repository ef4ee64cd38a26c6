"""What this release serves is what the list of APIs says."""

from __future__ import annotations

from millrace.broker.assembly.ground import Release
from millrace.broker.handlers import APIS
from millrace.sim.older_broker import OLDER_APIS


def test_a_broker_serves_all_apis_unless_it_is_of_another_release() -> None:
    assert Release().apis == APIS
    older = Release(apis=OLDER_APIS)
    assert [api.key for api in older.apis] == [api.key for api in APIS]
    assert any(old.versions != new.versions for old, new in zip(older.apis, APIS, strict=True))
