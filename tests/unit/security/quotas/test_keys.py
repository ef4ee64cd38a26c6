"""What can be limited, and to which values."""

from __future__ import annotations

import math

import pytest

from millrace.security.quotas.entities import InvalidQuota, QuotaEntity, entity
from millrace.security.quotas.keys import Alteration, altered_limits

ME = entity(user="me")
IP = entity(ip=None)


def test_alterations_set_and_remove_limits_and_leave_the_others() -> None:
    present = {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}
    alterations = [
        Alteration("producer_byte_rate", None),
        Alteration("request_percentage", 12.5),
        Alteration("controller_mutation_rate", None),
    ]
    assert altered_limits(ME, present, alterations) == {"consumer_byte_rate": 6.0, "request_percentage": 12.5}
    assert present["producer_byte_rate"] == 5.0
    assert altered_limits(IP, {}, [Alteration("connection_creation_rate", 3)]) == {
        "connection_creation_rate": 3
    }


@pytest.mark.parametrize(
    "whom,key,value,words",
    [
        (ME, "connection_creation_rate", 1, "Invalid configuration key connection_creation_rate"),
        (IP, "producer_byte_rate", 1, "Invalid configuration key producer_byte_rate"),
        (ME, "producer_byte_rate", 0, "must be greater than 0"),
        (ME, "request_percentage", -1, "must be greater than 0"),
        (ME, "request_percentage", math.nan, "must be greater than 0"),
        (ME, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        (ME, "producer_byte_rate", 1e19, "too large for a LONG"),
        (IP, "connection_creation_rate", 2**31, "too large for an INT"),
    ],
)
def test_values_that_kafka_refuses_are_refused(whom: QuotaEntity, key: str, value: float, words: str) -> None:
    with pytest.raises(InvalidQuota, match=words):
        altered_limits(whom, {}, [Alteration(key, value)])


def test_a_key_twice_in_one_request_is_refused() -> None:
    twice = [Alteration("producer_byte_rate", 1), Alteration("producer_byte_rate", None)]
    with pytest.raises(InvalidQuota, match="Duplicate quota key"):
        altered_limits(ME, {}, twice)
