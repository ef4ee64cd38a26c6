"""Where the tokens of OAUTHBEARER come from: a setting, a file, or an endpoint that gives them to a client
that shows its id and secret (RFC 6749, section 4.4).

`TokenSource.take` may wait for the network and is called in a thread, or by a program without a loop.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from millrace.client.errors import ConnectionFailed, InvalidOption, LoginFailed
from millrace.core.override import override

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
KEPT_PART: Final = 0.8
"""Of a token's life: for the rest of it another one is taken for new logins."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """Who gives tokens to whom."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None
    """Whom to trust there; without one, the authorities that the system trusts."""


class TokenSource:
    """The token to log in with at this moment. It shows none of its secrets."""

    def __init__(
        self,
        *,
        token: str | None = None,
        file: Path | None = None,
        endpoint: TokenEndpoint | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        assert (token is not None) + (file is not None) + (endpoint is not None) == 1
        if endpoint is not None and urlsplit(endpoint.url).scheme != "https":
            raise InvalidOption("sasl.oauthbearer.token.endpoint.url must begin with https:// or file:///")
        self._token = token
        self._file = file
        self._endpoint = endpoint
        self._now = now
        self._kept: tuple[str, float] | None = None
        # Of those who log in at once, one asks and the others wait for its token.
        self._lock = threading.Lock()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes ask for themselves."""
        return _rebuilt, (self._token, self._file, self._endpoint)

    def take(self) -> str:
        """Raises LoginFailed, or ConnectionFailed where another try may help."""
        if self._endpoint is None:
            return _checked(self._read())
        with self._lock:
            if self._kept is not None and self._now() < self._kept[1]:
                return self._kept[0]
            began = self._now()
            token, life_s = _ask(self._endpoint)
            self._kept = (token, began + KEPT_PART * life_s)
            return token

    def _read(self) -> str:
        if self._file is None:
            return self._token or ""
        try:
            return self._file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginFailed(f"the token cannot be read from {self._file}: {type(error).__name__}") from None


def _rebuilt(token: str | None, file: Path | None, endpoint: TokenEndpoint | None) -> TokenSource:
    return TokenSource(token=token, file=file, endpoint=endpoint)


def _checked(token: Any) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise LoginFailed("what was given as a token is none")
    return token


def _ask(endpoint: TokenEndpoint) -> tuple[str, float]:
    """A token, and for how many seconds it lasts."""
    # Few logins need them, and loading them takes long.
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """The secret is for this endpoint and nobody else."""

        @override
        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as error:
        raise LoginFailed(f"the authorities for the token endpoint cannot be read: {error}") from None
    opener = build_opener(HTTPSHandler(context=context), NoRedirects())
    form = {"grant_type": "client_credentials"}
    if endpoint.scope:
        form["scope"] = endpoint.scope
    pair = f"{quote(endpoint.client_id, safe='')}:{quote(endpoint.client_secret, safe='')}"
    request = Request(
        endpoint.url,
        data=urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
    except HTTPError as error:
        error.close()
        text = f"the token endpoint {endpoint.url} answered {error.code}"
        if error.code >= 500 or error.code == 429:
            raise ConnectionFailed(text) from None
        raise LoginFailed(text) from None
    except URLError as error:
        raise ConnectionFailed(
            f"the token endpoint {endpoint.url} cannot be reached: {error.reason}"
        ) from None
    except OSError as error:
        raise ConnectionFailed(f"the token endpoint {endpoint.url} cannot be reached: {error}") from None
    except ValueError:
        raise LoginFailed(f"the token endpoint {endpoint.url} did not answer with JSON") from None
    if not isinstance(answer, dict):
        raise LoginFailed(f"the token endpoint {endpoint.url} did not answer with a token")
    life_s = answer.get("expires_in")
    token = _checked(answer.get("access_token"))
    return token, float(life_s) if isinstance(life_s, int | float) else 0.0
