"""Logins of clients: the mechanisms that each listener offers, and where they find users, tokens and keys."""

from __future__ import annotations

import hmac
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.listener_security import LoginSettings, OAuthSettings, has_logins, login_settings
from millrace.broker.config.listeners import Listener
from millrace.broker.handlers.services import Services
from millrace.broker.network.key_sets import KeySetFeed, KeySetPlace
from millrace.broker.network.login import ListenerLogins
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.service import Metadata
from millrace.security.credentials.passwords import ConfiguredUsers, PasswordCheck, StoredUsers
from millrace.security.credentials.scram import Decoys, ScramCredential, ScramMechanism
from millrace.security.jwt.validation import JwtValidator, UnsecuredValidator
from millrace.security.sasl.exchange import Exchange
from millrace.security.sasl.oauthbearer import OAUTHBEARER, OAuthBearerExchange, TokenValidator
from millrace.security.sasl.plain import PLAIN, PlainExchange
from millrace.security.sasl.scram import ScramExchange, TokenLogin
from millrace.security.sasl.session import SaslSettings
from millrace.security.tokens import TokenLogins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """Who can log in by SCRAM: users of the metadata's present image, and holders of delegation tokens."""

    metadata: Metadata
    tokens: TokenLogins

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        found = self.metadata.image.security.credentials.get(name)
        return None if found is None else found.get(mechanism.label)

    def token(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        return self.tokens.find(mechanism, token_id, now_ms)

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        self.tokens.keep(mechanism, token_id, credential)


@dataclass(slots=True)
class Logins:
    """The logins of all listeners that ask for one."""

    ground: Ground
    store: StoredCredentials
    decoys: Decoys
    chance: random.Random
    by_listener: dict[str, ListenerLogins] = field(default_factory=dict)
    feeds: dict[OAuthSettings, KeySetFeed] = field(default_factory=dict)
    """Of key sets; listeners with the same settings share one."""

    def settings_of(self, settings: LoginSettings) -> SaslSettings:
        """What clients of a listener can do, by its configuration."""
        return SaslSettings(
            mechanisms={name: self._mechanism(name, settings) for name in settings.mechanisms},
            reauthentication_ms_max=settings.reauthentication_ms_max,
            token_bytes_max=settings.token_bytes_max,
            failure_delay_ms=settings.failure_delay_ms,
        )

    def _mechanism(self, name: str, settings: LoginSettings) -> Callable[[], Exchange]:
        if name == PLAIN:
            users: PasswordCheck = StoredUsers(self.store.credential, self.decoys)
            if settings.plain_users is not None:
                users = ConfiguredUsers(settings.plain_users)
            return partial(PlainExchange, users)
        if name == OAUTHBEARER:
            assert settings.oauth is not None
            return partial(OAuthBearerExchange, self._validator(settings.oauth))
        (mechanism,) = (one for one in ScramMechanism if one.label == name)
        return partial(ScramExchange, mechanism, self.store, self.decoys, self.chance)

    def _validator(self, oauth: OAuthSettings) -> TokenValidator:
        if oauth.is_unsecured:
            return UnsecuredValidator(oauth.tokens)
        feed = self.feeds.get(oauth)
        if feed is None:
            assert oauth.url is not None
            place = KeySetPlace(
                url=oauth.url,
                allowed_urls=oauth.allowed_urls,
                refresh_s=oauth.refresh_s,
                retry_s=oauth.retry_s,
                retry_s_max=oauth.retry_s_max,
            )
            feed = self.feeds[oauth] = KeySetFeed(place, None)
            _ = self.ground.background.keep("token-keys", feed.run)
        return JwtValidator(oauth.tokens, feed.keys)


def build_logins(ground: Ground, services: Services) -> Logins:
    """The logins of the listeners that there are. They follow changes of users and passwords."""
    chance = ground.surroundings.secret_chance or ground.surroundings.chance
    logins = Logins(
        ground,
        StoredCredentials(services.metadata, services.tokens.logins),
        Decoys(_decoy_key(ground.config.now, chance)),
        chance,
    )
    lanes = ground.surroundings.lanes
    for listener in ground.config.now.listeners:
        if has_logins(listener):
            logins.by_listener[listener.name] = ListenerLogins(
                listener.name,
                logins.settings_of(login_settings(ground.config.now, listener)),
                ground.surroundings.clock,
                None if lanes is None else lanes.logins,
            )

    def reconfigure(before: BrokerConfig, now: BrokerConfig) -> None:
        for listener in now.listeners:
            if listener.name not in logins.by_listener:
                continue
            try:
                if _differs(before, now, listener):
                    settings = logins.settings_of(login_settings(now, listener))
                    logins.by_listener[listener.name].settings = settings
            except InvalidConfig as error:
                log.error("new settings of logins cannot be used, the old ones stay: %s", error)

    ground.config.subscribe(reconfigure)
    return logins


def _differs(before: BrokerConfig, now: BrokerConfig, listener: Listener) -> bool:
    return login_settings(before, listener) != login_settings(now, listener)


def _decoy_key(config: BrokerConfig, chance: random.Random) -> bytes:
    """What made-up credentials come from: the same on all brokers where they share a secret."""
    secret = part_settings.token_settings(config).secret_key
    if secret is None:
        return chance.getrandbits(256).to_bytes(32, "big")
    return hmac.digest(secret, b"decoys", "sha256")
