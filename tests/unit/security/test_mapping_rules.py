"""`ssl.principal.mapping.rules` gives the same principals as Kafka's SslPrincipalMapper."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.errors import InvalidDistinguishedName, InvalidMappingRules, NoRuleMatches
from millrace.security.mapping_rules import DEFAULT_RULES, LENGTH_MAX, parse_mapping_rules

KAFKAS_EXAMPLE = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    "rules, name, principal",
    [
        (KAFKAS_EXAMPLE, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKAS_EXAMPLE, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS_EXAMPLE, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (KAFKAS_EXAMPLE, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (KAFKAS_EXAMPLE, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ,DC=g,DC=cz", r"Tkac\, Adam"),
        ("RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/", "CN=bob", "bob"),
        ("DEFAULT", "CN=a", "CN=a"),
        (",, , DEFAULT ,", "CN=a", "CN=a"),
        # A slash in either half is escaped.
        (r"RULE:^CN=a\/b$/x\/y/", "CN=a/b", "x/y"),
        # References that do not exist stay as they are; of many digits as many count as there are groups.
        ("RULE:^CN=(.*)$/$1@$2/", "CN=a", "a@$2"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("RULE:^CN=(.*)$/$0!/", "CN=a", "CN=a!"),
        ("RULE:^CN=(.*)$/$01/", "CN=a", "a"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
        ("RULE:^CN=(a)|CN=(b)$/$1-$2/", "CN=b", "-b"),
        # As replaceAll does it: an empty match follows one of everything.
        ("RULE:.*/x/", "CN=a", "xx"),
        ("RULE:(CN)=(.*?)/$1/", "CN=a", "CNa"),
        ("RULE:^.*$/ß/U", "CN=a", "SS"),
        ("RULE:^CN=(\\p{L}+)$/$1/L", "CN=ÄÖ", "äö"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_counts(rules: str, name: str, principal: str) -> None:
    assert parse_mapping_rules(rules).name_of(name) == principal


@pytest.mark.parametrize(
    "rules, name", [("RULE:CN=a/x/", "CN=ab"), ("RULE:CN=a/x/", "OU=b,CN=a"), ("", "CN=a"), (" , ,", "CN=a")]
)
def test_a_name_that_no_rule_matches_is_refused(rules: str, name: str) -> None:
    with pytest.raises(NoRuleMatches):
        parse_mapping_rules(rules).name_of(name)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:^CN=(.*)$/$x/",
        "RULE:^CN=(.*)$/$/",
    ],
)
def test_rules_that_kafka_refuses_are_refused_when_they_are_read(rules: str) -> None:
    with pytest.raises(InvalidMappingRules, match="Invalid rule"):
        parse_mapping_rules(rules)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=CN).*",
        "(?!CN).*",
        "(?<=CN).*",
        "(?<!CN).*",
        r"(a)\1",
        "(?>a)",
        "a*+",
        "(",
        r"\R",
        "a{1001}",
        # These RE2 would read, and not as Java does.
        "[a-z&&[^b]]",
        "[a[bc]]",
        "[^[a]]",
        "(?U)a",
        "(?iU:a)",
        r"\v",
    ],
)
def test_what_re2_cannot_do_as_java_does_is_refused_when_rules_are_read(pattern: str) -> None:
    with pytest.raises(InvalidMappingRules, match="cannot be used"):
        parse_mapping_rules(f"RULE:{pattern}/x/, DEFAULT")


@pytest.mark.parametrize("pattern", [r"[\[a]", "[]a]", "[^]a]", r"\[[a]", "a&&b", "(?i)a", r"\\v"])
def test_what_looks_like_it_is_not_refused(pattern: str) -> None:
    parse_mapping_rules(f"RULE:{pattern}/x/")


def test_rules_have_a_bound() -> None:
    with pytest.raises(InvalidMappingRules, match="characters"):
        parse_mapping_rules("," * (LENGTH_MAX + 1))


def test_units_of_a_certificate_are_groups_where_that_is_wanted() -> None:
    rules = parse_mapping_rules("RULE:^CN=([^,]*),.*$/$1/")
    identity = rules.identity_of("CN=a,OU=b,OU=c,O=d", groups_attribute="OU")
    assert str(identity.principal) == "User:a"
    assert identity.groups == ("b", "c")
    assert identity.mechanism is None
    assert rules.identity_of("CN=a,OU=b").groups == ()
    with pytest.raises(InvalidDistinguishedName):
        rules.identity_of("CN=a,OU", groups_attribute="OU")


@given(st.text())
def test_default_leaves_every_name_as_it_is(name: str) -> None:
    assert parse_mapping_rules(DEFAULT_RULES).name_of(name) == name


@given(st.text(alphabet="RULE:DEFAULT/,$1\\() .*[]^LU", max_size=60), st.text(max_size=10))
def test_every_text_is_a_list_of_rules_or_refused(rules: str, name: str) -> None:
    with suppress(InvalidMappingRules, NoRuleMatches):
        parse_mapping_rules(rules).name_of(name)


@given(groups=st.integers(0, 12), reference=st.integers(0, 999))
def test_a_reference_is_a_group_or_stands_for_itself(groups: int, reference: int) -> None:
    rules = parse_mapping_rules(f"RULE:^{'(a)' * groups}b$/${reference}/")
    name = "a" * groups + "b"
    digits = str(reference)
    found = rules.name_of(name)
    if int(digits[0]) > groups:
        assert found == f"${digits}"
    else:
        length = max(n for n in range(1, len(digits) + 1) if int(digits[:n]) <= groups)
        assert found == ("a" if int(digits[:length]) else name) + digits[length:]
