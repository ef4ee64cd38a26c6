"""The checks that every history has to pass, with and without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from millrace.sim.checkers import groups, leases, order, permissions, queues, records, replicas, transactions
from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import History

Check = Callable[[Facts], Iterator[Violation]]

ALL: Final[tuple[Check, ...]] = (
    records.nothing_acknowledged_is_lost,
    records.nothing_is_hidden,
    records.committed_transactions_are_whole,
    records.no_duplicates,
    records.one_offset_one_value,
    records.every_record_in_its_topic,
    records.old_topics_stay_gone,
    records.everything_is_seen,
    records.sequences_hold,
    order.polls_go_forward,
    order.polls_skip_nothing,
    order.sends_stay_in_order,
    transactions.nothing_aborted_is_read,
    transactions.information_flows_one_way,
    transactions.no_transaction_hangs,
    transactions.nobody_fences_itself,
    transactions.late_ends_are_refused,
    transactions.copies_are_complete,
    replicas.copies_are_equal,
    replicas.copies_are_whole,
    replicas.nobody_asks_in_vain,
    leases.nobody_serves_without_a_lease,
    leases.a_refusal_is_no_proof_of_death,
    groups.partitions_have_one_owner,
    groups.only_owners_commit,
    groups.commits_do_not_go_back,
    permissions.nobody_is_served_without_permission,
    queues.one_holder_at_a_time,
    queues.what_is_done_stays_done,
    queues.deliveries_are_counted,
    queues.nothing_is_passed_over,
    queues.state_is_what_was_stored,
    queues.what_is_given_up_has_a_dead_letter,
    queues.nothing_comes_early,
)


def violations(history: History) -> list[Violation]:
    facts = Facts(history)
    return [violation for check in ALL for violation in check(facts)]


__all__ = ["ALL", "Violation", "violations"]
