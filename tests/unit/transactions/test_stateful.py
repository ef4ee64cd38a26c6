"""Requests that are delayed, repeated and reordered, restarts and time-outs between them: whatever happens, a
transaction ends as it was ended, once, and nobody but its own producer takes part in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.transactions.commands import (
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducer,
    WriteMarkers,
)
from millrace.transactions.transaction import CLIENT_EPOCH_MAX, EPOCH_MAX, State
from tests.unit.transactions.lab import NAME, Lab

PLACES: Final = [TopicPartition("orders", number) for number in range(3)]


class DelayedRequests(RuleBasedStateMachine):
    """Every request ever sent stays in `requests`, and may arrive at any time, any number of times."""

    identities = Bundle("identities")
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab()
        self.highest: dict[int, int] = {}
        self.outcomes: dict[Identity, bool] = {}
        """How the transaction of an identity (of version 2) was ended: that must never change."""

    # Sending: nothing arrives yet.

    @rule(target=requests)
    def send_init(self) -> object:
        return InitProducer(transactional_id=NAME, timeout_ms=60_000)

    @rule(target=requests, known=identities)
    def send_continuing_init(self, known: Identity) -> object:
        return InitProducer(transactional_id=NAME, timeout_ms=60_000, expected=known)

    @rule(target=requests, producer=identities, place=st.sampled_from(PLACES))
    def send_add(self, producer: Identity, place: TopicPartition) -> object:
        return AddPartitions(
            transactional_id=NAME, producer=producer, partitions=(place,), transaction_version=2
        )

    @rule(target=requests, producer=identities, is_commit=st.booleans())
    def send_end(self, producer: Identity, is_commit: bool) -> object:
        return EndTransaction(
            transactional_id=NAME,
            producer=producer,
            is_commit=is_commit,
            transaction_version=2,
        )

    # Arriving.

    @rule(target=identities, request=requests)
    def arrive(self, request: object) -> object:
        before = self.lab.machine.transactions.get(NAME)
        if isinstance(request, InitProducer | EndTransaction):
            # Drawn by the coordinator's shell whenever a request arrives.
            request = replace(request, fresh_producer_id=self.lab.fresh())
        outcome = self.lab.give(request)
        after = self.lab.machine.transactions.get(NAME)
        match request:
            case AddPartitions(producer=producer) if not isinstance(outcome, MillraceError):
                assert after is not None
                assert after.identity == producer, "only the present producer adds partitions"
                assert producer not in self.outcomes, "a transaction that has ended takes no more partitions"
            case EndTransaction(producer=producer, is_commit=is_commit) if isinstance(outcome, Identity):
                if before is not None and before.state is State.Ongoing:
                    assert before.identity == producer, "only its own producer ends a transaction"
                assert self.outcomes.setdefault(producer, is_commit) == is_commit, "ended once"
                assert outcome.epoch <= CLIENT_EPOCH_MAX
            case _:
                pass
        return outcome if isinstance(outcome, Identity) else multiple()

    @rule()
    def write_markers(self) -> None:
        for effect in self.lab.effects:
            self._check_markers(effect)
        self.lab.write_markers()

    def _check_markers(self, effect: WriteMarkers) -> None:
        if effect.is_commit:
            ended = Identity(effect.producer.producer_id, effect.producer.epoch - 1)
            assert self.outcomes.get(ended) is True, "only what its producer committed is committed"

    @rule()
    def restart(self) -> None:
        live = dict(self.lab.machine.transactions)
        self.lab = self.lab.reloaded()
        assert self.lab.machine.transactions == live, "what is stored is what was known"

    @rule(ms=st.sampled_from([1_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.lab.pass_time(ms)

    @precondition(lambda self: NAME in self.lab.machine.transactions)
    @rule(target=identities)
    def use_up_epochs(self) -> object:
        """As if there had been thousands of transactions before."""
        transaction = self.lab.transaction
        if transaction.state is not State.Empty or transaction.epoch >= CLIENT_EPOCH_MAX - 3:
            return multiple()
        identity = Identity(transaction.producer_id, CLIENT_EPOCH_MAX - 2)
        changed = transaction.initialized(identity, transaction.timeout_ms, self.lab.now_ms)
        self.lab.store(changed)
        return identity

    # At all times.

    @invariant()
    def epochs_only_rise(self) -> None:
        transaction = self.lab.machine.transactions.get(NAME)
        if transaction is not None:
            highest = self.highest.get(transaction.producer_id, -1)
            assert highest <= transaction.epoch <= EPOCH_MAX
            self.highest[transaction.producer_id] = transaction.epoch

    @invariant()
    def nothing_stays_open_for_ever(self) -> None:
        transaction = self.lab.machine.transactions.get(NAME)
        if transaction is None:
            return
        if transaction.state is State.Ongoing:
            assert NAME in self.lab.timers
            assert transaction.epoch <= CLIENT_EPOCH_MAX
        elif transaction.is_prepared:
            assert any(effect.producer == transaction.identity for effect in self.lab.effects)
        else:
            assert not transaction.partitions


TestDelayedRequests = DelayedRequests.TestCase
TestDelayedRequests.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
