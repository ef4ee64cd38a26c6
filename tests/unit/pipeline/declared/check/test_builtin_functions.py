"""Names that Spark would call its own function for."""

from __future__ import annotations

import pytest

from millrace.pipeline.declared.check.builtin_functions import BUILTIN_FUNCTIONS, is_builtin, other_names


@pytest.mark.parametrize("name", ["upper", "UPPER", "Try_Divide", "window", "e"])
def test_a_name_of_sparks_own_is_known_in_any_case(name: str) -> None:
    assert is_builtin(name)


@pytest.mark.parametrize("name", ["tidy_name", "upper_", ""])
def test_other_names_are_free(name: str) -> None:
    assert not is_builtin(name)


def test_the_list_holds_whole_names_in_lower_case() -> None:
    assert len(BUILTIN_FUNCTIONS) > 500
    assert all(name.isidentifier() and name == name.lower() for name in BUILTIN_FUNCTIONS)


def test_names_that_are_proposed_instead_are_free_themselves() -> None:
    assert other_names("upper") == "my_upper or upper_value"
    # `any_value` is Spark's.
    assert other_names("any") == "my_any"
