"""`ssl.principal.mapping.rules`: from the name in a client's certificate to a principal.

`RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas; the first that matches the whole name
counts, and a name that none matches is refused. Kafka's patterns are Java's, ours are RE2's, which never take
more than linear time. A pattern that means something else in RE2, or nothing, is refused when it is read, and
not when the first certificate comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.security.distinguished_names import values_of
from millrace.security.errors import InvalidMappingRules, NoRuleMatches
from millrace.security.principals import Identity, user

if TYPE_CHECKING:
    import re2

DEFAULT_RULES: Final = "DEFAULT"
LENGTH_MAX: Final = 65_536
MEMORY_PER_PATTERN: Final = 1 << 20

# As in Kafka: a rule ends at a comma that neither its pattern nor its replacement holds.
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_PARSER: Final = re.compile(_RULE, re.ASCII)
_FLAGS_WITH_U: Final = re.compile(r"\(\?[a-zA-Z-]*U")


@dataclass(frozen=True, slots=True)
class MappingRules:
    """Rules in their order."""

    rules: tuple[Rule, ...]

    def name_of(self, distinguished_name: str) -> str:
        """The name of the principal; raises NoRuleMatches."""
        for rule in self.rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoRuleMatches(distinguished_name)

    def identity_of(self, distinguished_name: str, *, groups_attribute: str | None = None) -> Identity:
        """What the holder of a certificate is authenticated as; raises NoRuleMatches.

        With an attribute such as `OU` its values are the holder's groups, and a name that cannot be taken
        apart raises InvalidDistinguishedName."""
        return Identity(
            principal=user(self.name_of(distinguished_name)),
            groups=() if groups_attribute is None else values_of(distinguished_name, groups_attribute),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; without a pattern it is DEFAULT, which leaves every name as it is."""

    pattern: str | None = None
    replacement: tuple[str | int, ...] = ()
    """Texts, and numbers of the groups that stand between them."""
    case: str = ""
    matcher: re2._Regexp | None = None

    def apply(self, name: str) -> str | None:
        if self.matcher is None:
            return name
        if self.matcher.fullmatch(name) is None:
            return None
        # Like Java's replaceAll: the pattern need not match the same as a whole and when it is searched for,
        # and behind the end of a match of everything an empty one may follow.
        pieces: list[str] = []
        done = 0
        for match in self.matcher.finditer(name):
            pieces.append(name[done : match.start()])
            pieces += (
                part if isinstance(part, str) else match.group(part) or "" for part in self.replacement
            )
            done = match.end()
        pieces.append(name[done:])
        result = "".join(pieces)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def parse_mapping_rules(text: str) -> MappingRules:
    """Raises InvalidMappingRules, with the rule and what is wrong with it."""
    if len(text) > LENGTH_MAX:
        raise InvalidMappingRules(f"ssl.principal.mapping.rules has more than {LENGTH_MAX} characters")
    rules = [_parse_rule(match.group(1)) for match in _SPLITTER.finditer(text.strip())]
    return MappingRules(tuple(rule for rule in rules if rule is not None))


def _parse_rule(text: str) -> Rule | None:
    match = _PARSER.match(text)
    assert match is not None, text
    if match.end() != len(text):
        raise InvalidMappingRules(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match.group(1) is not None:
        return Rule()
    if match.group(2) is None:
        return None
    pattern, replacement, case = match.group(2), match.group(3), match.group(4)
    matcher = _compile(pattern)
    return Rule(pattern, _parse_replacement(text, replacement, matcher.groups), case, matcher)


def _compile(pattern: str) -> Any:
    # Loaded on first use: most brokers have no such rules.
    import re2

    _refuse_other_meanings(pattern)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_PER_PATTERN
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidMappingRules(
            f"the pattern `{pattern}` cannot be used: {text} (patterns are RE2's, which has no look-ahead, "
            "no look-behind and no back references)"
        ) from None


def _refuse_other_meanings(pattern: str) -> None:
    """What RE2 reads without complaint, but not as Java does."""
    is_in_class = False
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            if pattern[at + 1 : at + 2] == "v":
                raise InvalidMappingRules(
                    rf"the pattern `{pattern}` cannot be used: \v is one character in RE2"
                )
            at += 2
            continue
        if is_in_class:
            if character == "[" or pattern.startswith("&&", at):
                raise InvalidMappingRules(
                    f"the pattern `{pattern}` cannot be used: RE2 has no classes inside classes and no "
                    "intersections; a bracket that is meant as such is written \\["
                )
            is_in_class = character != "]"
        elif character == "[":
            is_in_class = True
            # A bracket that closes is a member of the class where it comes first.
            at += 1 if pattern.startswith("^", at + 1) else 0
            at += 1 if pattern.startswith("]", at + 1) else 0
        elif _FLAGS_WITH_U.match(pattern, at):
            raise InvalidMappingRules(
                f"the pattern `{pattern}` cannot be used: the flag U means another thing in RE2"
            )
        at += 1


def _parse_replacement(rule: str, text: str, groups: int) -> tuple[str | int, ...]:
    """`$1` is a group, as many digits of it as there are groups; one that does not exist stays as it is
    written. A backslash takes its meaning from the next character."""
    parts: list[str | int] = []
    literal = ""
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\":
            literal += text[at]
            at += 1
        elif character != "$":
            literal += character
        elif not (text[at : at + 1].isascii() and text[at : at + 1].isdigit()):
            raise InvalidMappingRules(f"Invalid rule: `{rule}`, a `$` that names no group is written `\\$`")
        elif int(text[at]) > groups:
            literal += "$"
        else:
            group = int(text[at])
            at += 1
            while (
                text[at : at + 1].isascii()
                and text[at : at + 1].isdigit()
                and group * 10 + int(text[at]) <= groups
            ):
                group = group * 10 + int(text[at])
                at += 1
            parts += (literal, group)
            literal = ""
    return (*parts, literal)
