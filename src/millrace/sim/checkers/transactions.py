"""Readers of committed records see only whole transactions; no transaction hangs, and none reads in a
circle."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Transaction, Violation
from millrace.sim.clients.copier import copy_of
from millrace.sim.history import Copying, FencedItself, LateEndAccepted, TransactionRead


def nothing_aborted_is_read(facts: Facts) -> Iterator[Violation]:
    """Aborted read (G1a): readers of committed records get nothing of an aborted transaction."""
    for polled in facts.polled:
        if polled.committed_only:
            for offset, value in polled.records:
                if facts.outcome_at(polled.topic, polled.partition, offset, value) == "abort":
                    yield Violation(
                        "aborted read",
                        f"{polled.consumer} got {value} at {offset} of {polled.topic}-{polled.partition}",
                    )
    for (topic, partition, committed_only), final in facts.final.items():
        if committed_only:
            for offset, value in final.records:
                if facts.outcome_at(topic, partition, offset, value) == "abort":
                    yield Violation("aborted read", f"{value} is at {offset} of {topic}-{partition}")


def information_flows_one_way(facts: Facts) -> Iterator[Violation]:
    """Circular information flow (G1c): committed transactions that read from each other."""
    writer_of: dict[str, Transaction] = {}
    for value, sends in facts.sent.items():
        for sent in sends:
            transaction = (sent.producer, sent.transaction)
            if sent.transaction and facts.outcomes.get(transaction) == "commit":
                writer_of[value] = transaction
    reads: dict[Transaction, dict[Transaction, None]] = {}
    for event in facts.history.of(TransactionRead):
        reader = (event.producer, event.transaction)
        if facts.outcomes.get(reader) == "commit":
            writers = [writer_of[value] for value in event.values if value in writer_of]
            reads.setdefault(reader, {}).update(dict.fromkeys(writers))
    for circle in _circles(reads):
        yield Violation("circular information flow", " reads from ".join(f"{p} #{n}" for p, n in circle))


def _circles(reads: dict[Transaction, dict[Transaction, None]]) -> Iterator[list[Transaction]]:
    done: dict[Transaction, None] = {}
    for start in reads:
        path: dict[Transaction, None] = {}
        stack: list[tuple[Transaction, bool]] = [(start, False)]
        while stack:
            node, is_leaving = stack.pop()
            if is_leaving:
                path.pop(node, None)
                done[node] = None
            elif node in path:
                names = list(path)
                yield [*names[names.index(node) :], node]
            elif node not in done:
                path[node] = None
                stack.append((node, True))
                stack += [(writer, False) for writer in reads.get(node, ())]


def nobody_fences_itself(facts: Facts) -> Iterator[Violation]:
    """A producer that commits and then aborts an empty transaction is not refused (F18)."""
    for event in facts.history.of(FencedItself):
        yield Violation("fenced itself", f"{event.producer} was refused an empty abort: {event.reason}")


def late_ends_are_refused(facts: Facts) -> Iterator[Violation]:
    """A delayed EndTxn does not end the transaction that it happens to meet (F16)."""
    for event in facts.history.of(LateEndAccepted):
        yield Violation(
            "late end", f"{event.producer}: transaction {event.transaction} was ended by the one before"
        )


def no_transaction_hangs(facts: Facts) -> Iterator[Violation]:
    """In the end, when all transactions have ended or timed out, nothing holds readers of committed records
    back."""
    for (topic, partition, committed_only), final in facts.final.items():
        if committed_only and final.last_stable_offset < final.high_watermark:
            yield Violation(
                "hanging transaction",
                f"{topic}-{partition} is stable up to {final.last_stable_offset} of {final.high_watermark}",
            )


def copies_are_complete(facts: Facts) -> Iterator[Violation]:
    """Exactly once: everything is copied. Another check says that nothing is there twice."""
    for event in facts.history.of(Copying):
        copies: dict[str, None] = {}
        for (topic, _, committed_only), final in facts.final.items():
            if topic == event.target and committed_only:
                copies.update(dict.fromkeys(value for _, value in final.records))
        for (topic, partition, committed_only), final in facts.final.items():
            if topic != event.source or not committed_only:
                continue
            for offset, value in final.records:
                if copy_of(event.target, value) not in copies:
                    yield Violation(
                        "not copied", f"{value} at {offset} of {topic}-{partition} is not in {event.target}"
                    )
