"""What rules of a kind need not say."""

from __future__ import annotations

from millrace.core.ids import TopicId
from tests.unit.groups.consumer_lab import Lab


def test_groups_expire_and_do_not_mind_deleted_topics_unless_their_kind_says_so() -> None:
    rules = Lab().rules
    assert rules.groups_expire
    assert list(rules.topics_deleted([TopicId(b"t" * 16)])) == []
