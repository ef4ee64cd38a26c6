"""S18: only URLs that the operator listed, only https, and never into the machine's surroundings."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.errors import RefusedUrl
from millrace.security.jwt.urls import REDIRECTS_MAX, URL_LENGTH_MAX, check_address, check_redirect, check_url

URL = "https://idp.example/keys"
FILE = "file:///etc/keys.json"


def test_a_listed_url_is_allowed() -> None:
    assert check_url(URL, [URL]).hostname == "idp.example"
    assert check_url("https://127.0.0.1:8443/k?a=b", ["https://127.0.0.1:8443/k?a=b"]).port == 8443


def test_without_a_list_nothing_is_allowed() -> None:
    with pytest.raises(RefusedUrl, match="list"):
        check_url(URL, [])


@pytest.mark.parametrize("url", [URL + "/", URL + "?x", URL + "#x", "HTTPS://idp.example/keys", URL.upper()])
def test_a_url_that_is_nearly_listed_is_not(url: str) -> None:
    with pytest.raises(RefusedUrl):
        check_url(url, [URL])


@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example/keys",
        "ftp://idp.example/keys",
        "data:text/plain,x",
        "//idp.example/keys",
        "idp.example/keys",
        "",
        "https://",
        "https:///keys",
        "https://user@idp.example/keys",
        "https://user:password@idp.example/keys",
        "https://idp.example:x/keys",
        "https://idp.example:99999/keys",
        "https://[::1/keys",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/keys",
        "https://[::ffff:169.254.169.254]/keys",
        "https://0.0.0.0/keys",
        "https://224.0.0.1/keys",
        "https://2852039166/keys",
        "https://0xA9.0xFE.0xA9.0xFE/keys",
        "https://169.254.43518/keys",
        "https://idp.example/keys#x",
        "https://idp.example/a b",
        "https://idp.example\\@evil/",
        "https://idp.example/\n",
        "https://idp.examplé/keys",
        "https://idp.example/" + "x" * URL_LENGTH_MAX,
    ],
)
def test_what_is_never_fetched_even_if_it_is_listed(url: str) -> None:
    with pytest.raises(RefusedUrl) as refused:
        check_url(url, [url], are_files_allowed=True)
    assert "password" not in str(refused.value).replace("a user name or a password", "")


def test_files_need_a_setting() -> None:
    with pytest.raises(RefusedUrl, match="setting"):
        check_url(FILE, [FILE])
    assert check_url(FILE, [FILE], are_files_allowed=True).path == "/etc/keys.json"
    for url in ("file://host/etc/keys.json", "file:keys.json", "file:///other"):
        with pytest.raises(RefusedUrl):
            check_url(url, [FILE], are_files_allowed=True)


def test_redirects_are_judged_like_the_first_url() -> None:
    other = "https://cdn.example/keys"
    assert check_redirect(URL, other, [URL, other], followed=0) == other
    assert check_redirect(URL, "/keys", [URL], followed=2) == URL
    for location in (
        "https://evil.example/",
        "http://idp.example/keys",
        "https://169.254.169.254/",
        FILE,
        "//[",
        "",
    ):
        with pytest.raises(RefusedUrl):
            check_redirect(URL, location, [FILE, "https://169.254.169.254/"], followed=0)
    with pytest.raises(RefusedUrl, match="redirects"):
        check_redirect(URL, URL, [URL], followed=REDIRECTS_MAX)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "::1", "93.184.216.34", "2606:2800::1", "fd00::1"]
)
def test_addresses_that_a_name_may_have(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1%eth0",
        "::ffff:169.254.1.1",
        "2002:a9fe:a9fe::",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "not an address",
        "",
    ],
)
def test_addresses_that_are_not_connected_to(address: str) -> None:
    with pytest.raises(RefusedUrl):
        check_address(address)


@given(st.text("htps:/[]@.#?%\\0x169f ", max_size=30))
def test_every_text_is_allowed_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        with suppress(RefusedUrl):
            check_url(url, [url])
        with suppress(RefusedUrl):
            check_redirect(URL, text, [url], followed=0)
    with suppress(RefusedUrl):
        check_address(text)
