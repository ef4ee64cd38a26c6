"""The bound on request memory: never exceeded, never a deadlock."""

from __future__ import annotations

from millrace.broker.network.memory import MemoryBudget


def test_who_does_not_fit_waits_in_order() -> None:
    budget = MemoryBudget(100)
    granted: list[str] = []
    assert budget.take(80)
    assert not budget.take(30)
    budget.wait(30, lambda: granted.append("large"))
    # A small one must not overtake, or the large one could wait forever.
    assert not budget.take(10)
    budget.wait(10, lambda: granted.append("small"))
    budget.give_back(80)
    assert granted == ["large", "small"]
    assert budget.used_bytes == 40


def test_an_unused_budget_grants_even_what_exceeds_it() -> None:
    budget = MemoryBudget(100)
    assert budget.take(500)
    assert not budget.take(1)
    budget.give_back(500)
    assert budget.take(1)


def test_a_withdrawn_wait_lets_the_next_one_through() -> None:
    budget = MemoryBudget(100)
    granted: list[str] = []

    def large() -> None:
        granted.append("large")

    assert budget.take(50)
    budget.wait(80, large)
    budget.wait(50, lambda: granted.append("small"))
    budget.stop_waiting(large)
    assert granted == ["small"]
    assert budget.used_bytes == 100
