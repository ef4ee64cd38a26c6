"""Lists of throttled replicas: what they mean, and what is refused with a reason."""

from __future__ import annotations

import pytest

from millrace.metadata.config_definitions import BrokerLayers, check_topic_configs, topic_settings
from millrace.metadata.errors import InvalidConfig

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def test_a_list_names_replicas_one_by_one() -> None:
    settings = topic_settings({LEADERS: "0:1, 2:3", FOLLOWERS: ""}, BrokerLayers())
    assert settings.throttled_leaders.includes(0, 1)
    assert settings.throttled_leaders.includes(2, 3)
    assert not settings.throttled_leaders.includes(0, 3)
    assert not settings.throttled_followers.includes(0, 1)


def test_a_star_names_all_of_them() -> None:
    settings = topic_settings({FOLLOWERS: "*"}, BrokerLayers())
    assert settings.throttled_followers.includes(7, 7)
    assert not settings.throttled_leaders.includes(7, 7)


@pytest.mark.parametrize(
    "text", ["0", "0:", ":1", "a:1", "0:1:2", "*,0:1", "-1:2", "0:1;2:3", "0:99999999999"]
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"\* or partition:broker, separated by commas"):
        check_topic_configs({LEADERS: text})
