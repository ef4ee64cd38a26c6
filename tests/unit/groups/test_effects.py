"""What one command leads to is collected step by step and handed over as one decision."""

from __future__ import annotations

from millrace.coordinator.decision import CancelTimer, Decision, Reply, SetTimer, Token
from millrace.coordinator.errors import NotCoordinator
from millrace.groups.effects import Effects


def test_nothing_leads_to_an_empty_decision() -> None:
    assert Effects().decision() == Decision()


def test_timers_are_set_and_cancelled_in_the_order_of_the_rules() -> None:
    effects = Effects()
    effects.set_timer("session", 500, "expire")
    effects.cancel_timer("session")
    effects.set_timer("session", 900, "expire later")
    assert effects.decision().timers == (
        SetTimer("session", 500, "expire"),
        CancelTimer("session"),
        SetTimer("session", 900, "expire later"),
    )


def test_replies_response_and_error_arrive_as_they_were_given() -> None:
    effects, error = Effects(), NotCoordinator("elsewhere")
    effects.reply(Token(3), "joined")
    effects.reply(Token(4), error)
    effects.response = "answer"
    effects.error = error
    decision = effects.decision()
    assert decision.replies == (Reply(Token(3), "joined"), Reply(Token(4), error))
    assert (decision.response, decision.error) == ("answer", error)


def test_what_is_added_after_a_decision_does_not_change_it() -> None:
    effects = Effects()
    before = effects.decision()
    effects.reply(Token(1), "late")
    effects.cancel_timer("late")
    assert before == Decision()
