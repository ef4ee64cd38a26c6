"""The end of a broker: each step is taken, whatever becomes of the one before."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker import stopping
from millrace.core.errors import MillraceError
from tests.unit.metadata.virtual_time import run_virtually


async def _succeed() -> None:
    await asyncio.sleep(1)


async def _hang() -> None:
    await asyncio.sleep(3_600)


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error, has_trace", [(MillraceError("the disk is gone"), False), (ValueError("a bug"), True)]
)
def test_a_step_that_fails_is_told_and_passed_over(
    error: Exception, has_trace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run_virtually(stopping.step("closing", _fail(error)))
    (record,) = caplog.records
    assert "closing failed" in record.getMessage()
    assert (record.exc_info is not None) == has_trace


def test_a_step_that_takes_too_long_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await stopping.step("closing", _hang(), 5.0, "it is checked next time")
        return asyncio.get_running_loop().time() - started

    assert run_virtually(main()) == pytest.approx(5.0)
    assert caplog.messages == ["closing was not done in 5 s: it is checked next time"]


def test_a_step_that_works_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run_virtually(stopping.step("closing", _succeed()))
    assert not caplog.records
