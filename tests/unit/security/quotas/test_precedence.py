"""Kafka's eight steps: each limit counts where no more special one does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.security.quotas.entities import QuotaEntity, entity
from millrace.security.quotas.precedence import NO_QUOTAS, Bucket, Limits, QuotaTable, share

KEY = "producer_byte_rate"
STEPS = [
    (entity(user="me", client_id="c"), Bucket("me", "c")),
    (entity(user="me", client_id=None), Bucket("me", "c")),
    (entity(user="me"), Bucket("me")),
    (entity(user=None, client_id="c"), Bucket("me", "c")),
    (entity(user=None, client_id=None), Bucket("me", "c")),
    (entity(user=None), Bucket("me")),
    (entity(client_id="c"), Bucket(client_id="c")),
    (entity(client_id=None), Bucket(client_id="c")),
]
OTHERS = [entity(user="you", client_id="c"), entity(client_id="d"), entity(ip=None), entity(tenant="t")]


@given(st.sets(st.integers(0, 7)), st.sets(st.sampled_from(OTHERS)))
def test_the_first_step_that_has_the_key_decides(present: set[int], others: set[QuotaEntity]) -> None:
    table = QuotaTable(
        [
            *((STEPS[step][0], {KEY: float(step + 1)}) for step in sorted(present)),
            *((other, {KEY: 99.0}) for other in sorted(others)),
        ]
    )
    found = table.limit(KEY, "me", "c")
    if not present:
        assert found is None
        return
    first = min(present)
    assert found is not None
    assert (found.bound, found.entity, found.bucket) == (first + 1, *STEPS[first])
    assert table.limit("consumer_byte_rate", "me", "c") is None, "other keys have steps of their own"


def test_a_client_without_an_id_is_in_no_step_that_has_one() -> None:
    """As in Kafka, where an empty id is looked up as none."""
    table = QuotaTable([(whom, {KEY: float(step)}) for step, (whom, _) in enumerate(STEPS)])
    found = table.limit(KEY, "me", "")
    assert found is not None
    assert (found.entity, found.bucket) == (entity(user="me"), Bucket("me"))
    assert QuotaTable([(entity(client_id=None), {KEY: 1.0})]).limit(KEY, "me", "") is None


def test_names_that_run_into_each_other_are_kept_apart() -> None:
    table = QuotaTable([(entity(user="a client-id 1 b"), {KEY: 1.0})])
    assert table.limit(KEY, "a", "b") is None
    assert not table.of(entity(user="a", client_id="b"))


def test_addresses_and_tenants_have_limits_of_their_own() -> None:
    rate = "connection_creation_rate"
    table = QuotaTable(
        [(entity(ip="::1"), {rate: 2.0}), (entity(ip=None), {rate: 9.0}), (entity(tenant="t"), {KEY: 5.0})]
    )
    assert (table.connection_rate("::1"), table.connection_rate("10.0.0.1")) == (2.0, 9.0)
    assert NO_QUOTAS.connection_rate("::1") is None
    found = table.tenant_limit(KEY, "t")
    assert found is not None
    assert (found.bound, found.bucket) == (5.0, Bucket(tenant="t"))
    assert table.tenant_limit(KEY, "other") is None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([whom for whom, _ in STEPS]),
            st.dictionaries(st.sampled_from(["a", "b"]), st.floats(1, 9), max_size=2),
            max_size=3,
        ),
        max_size=5,
    )
)
def test_a_table_changed_step_by_step_is_the_one_made_at_once(steps: list[dict[QuotaEntity, Limits]]) -> None:
    table, model = NO_QUOTAS, dict[QuotaEntity, Limits]()
    for step in steps:
        table = table.updated(step)
        model = {whom: limits for whom, limits in {**model, **step}.items() if limits}
    assert dict(table) == model
    assert table == QuotaTable(model.items())
    assert len(table) == len(model)
    assert table != "something else"


def test_a_limit_of_the_cluster_is_divided_among_its_brokers() -> None:
    assert share(12.0, 3) == 4.0
    assert share(12.0, 0) == 12.0
