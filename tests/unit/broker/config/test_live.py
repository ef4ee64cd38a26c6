"""The configuration of this moment, and who hears that it is another one."""

from __future__ import annotations

from millrace.broker.config.config import load
from millrace.broker.config.live import ConfigCallback, LiveConfig


def test_listeners_hear_of_both_values_in_the_order_in_which_they_subscribed() -> None:
    live = LiveConfig(load(None, {"num.partitions": "1"}, {}))
    heard: list[tuple[str, int, int]] = []

    def listener(name: str) -> ConfigCallback:
        return lambda old, new: heard.append(
            (name, old.integer("num.partitions"), new.integer("num.partitions"))
        )

    live.subscribe(listener("first"))
    live.subscribe(listener("second"))
    live.replace(load(None, {"num.partitions": "3"}, {}))
    assert heard == [("first", 1, 3), ("second", 1, 3)]
    assert live.now.integer("num.partitions") == 3


def test_a_listener_finds_the_new_values_in_force() -> None:
    live = LiveConfig(load(None, {"num.partitions": "1"}, {}))
    policy = live.policy
    found: list[int] = []
    live.subscribe(lambda old, new: found.append(policy().num_partitions))
    live.replace(load(None, {"num.partitions": "3"}, {}))
    assert found == [3]
