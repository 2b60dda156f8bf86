"""Who may do what: tokens, roles and limits, checked before a request is read."""

from __future__ import annotations

import math
import time
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Optional
from urllib.parse import urlsplit

import anyio
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders

from fib_serve.records import Role, Token

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fib_serve.service import ServeSettings
    from fib_serve.store import Store

COOKIE = "fib_token"
"""The cookie that the sign-in page sets."""

LOCAL = Token("local", Role.ADMIN, 0.0)
"""Everyone, as long as there are no tokens and the server listens on loopback only."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "too_many_requests",
    503: "unavailable",
}
_OPEN = frozenset({"/", "/health"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ANONYMOUS_BODY = 64 << 10  # enough for the sign-in form
_BODY_S = 30.0
_BUCKETS = 10_000


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def error_document(status: int, detail: str, hint: Optional[str] = None) -> dict[str, Any]:
    """Return the JSON that tells an error.

    Parameters
    ----------
    status : int
        Of HTTP.
    detail : str
        What is wrong, and what is allowed.
    hint : str, optional
        What to do next.
    """
    detail = detail.encode("utf-8", "replace").decode()  # it may quote what is no Unicode
    return {"detail": detail, "code": _CODES.get(status, "error"), "hint": hint}


def require(role: Role) -> Callable[[Request], Coroutine[Any, Any, Token]]:
    """Return a dependency that asks for a role.

    Parameters
    ----------
    role : Role
        What is needed at least.

    Returns
    -------
    callable
        Returns the token of a request. It raises an `HTTPException`: 401 without a valid token,
        403 if the role is not enough.
    """

    async def check(request: Request) -> Token:
        token: Optional[Token] = request.scope.get("fib_token")
        if token is None:
            raise _unauthorized()
        if not token.role.allows(role):
            raise HTTPException(
                403,
                f"{token.name!r} is a {token.role.value}; this needs the role {role.value}: ask "
                "whoever runs the server for a token with that role",
            )
        return token

    return check


def _unauthorized() -> HTTPException:
    return HTTPException(
        401,
        "a valid token is needed: it is missing, unknown, expired or revoked; send "
        "'Authorization: Bearer fib_...' ('fib serve token add' on the server makes one)",
        {"WWW-Authenticate": "Bearer"},
    )


class RateLimit:
    """A bucket of requests for each name, which refills steadily.

    Parameters
    ----------
    per_minute : int
        How many are allowed; 0 stands for no limit. After a pause twice as many may come at once.
    """

    def __init__(self, per_minute: int) -> None:
        self._rate, self._most = per_minute / 60, 2.0 * per_minute
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take one request out of a bucket; return for how many seconds it is empty, usually 0."""
        if not self._rate:
            return 0.0
        now = time.monotonic()
        if len(self._buckets) > _BUCKETS:  # full ones need not be known
            self._buckets = {
                key: (left, at)
                for key, (left, at) in self._buckets.items()
                if left + (now - at) * self._rate < self._most
            }
        left, at = self._buckets.get(name, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        self._buckets[name] = (left - 1, now)
        return 0.0


class Gate:
    """Middleware that refuses requests before they are read, and adds headers to all answers.

    Parameters
    ----------
    app : ASGI application
        What answers the others.
    store : Store
        The tokens.
    settings : ServeSettings
        The limits.
    requests : Counter
        Counts answers by status.
    """

    def __init__(
        self, app: ASGIApp, store: Store, settings: ServeSettings, requests: Counter[int]
    ) -> None:
        self._app, self._store, self._settings = app, store, settings
        self._requests = requests
        self._limit = RateLimit(settings.requests_per_minute)
        self._loopback, self._has_tokens = is_loopback(settings.host), False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests[message["status"]] += 1
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"] != "/ui" and not scope["path"].startswith("/ui/"):
                    headers.setdefault("Cache-Control", "private, no-cache")
            await send(message)

        headers = Headers(scope=scope)
        try:
            token = scope["fib_token"] = self._identify(scope, headers)
            self._check_limit(scope, token)
            if scope["method"] not in _READING:
                receive = await self._read(headers, receive, token)
        except HTTPException as error:
            document = error_document(error.status_code, error.detail)
            # What is left of the body is not read, so that the connection is of no more use.
            told = {**(error.headers or {}), "Connection": "close"}
            await JSONResponse(document, error.status_code, told)(scope, receive, finish)
            return
        except _Gone:
            return
        await self._app(scope, receive, finish)

    def _identify(self, scope: Scope, headers: Headers) -> Optional[Token]:
        # A look into the database takes some 20 µs and waits for no writer: going through a thread
        # would take longer.
        path, is_reading = scope["path"], scope["method"] in _READING
        if self._loopback and not self._has_tokens:  # revoked ones stay, so that it never ends
            self._has_tokens = bool(self._store.tokens())
        if self._loopback and not self._has_tokens:
            self._check_host(headers)
            if not is_reading:
                _check_origin(headers, must_tell=False)
            return LOCAL
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            token = self._store.verify(secret.strip())
        else:
            secret = _cookie(headers)
            token = self._store.verify(secret) if secret else None
            if not is_reading:
                _check_origin(headers, must_tell=bool(secret))
        is_page = path == "/ui" or path.startswith("/ui/")  # they refuse with a page of their own
        if token is None and not is_page and not (is_reading and path in _OPEN):
            raise _unauthorized()
        return token

    def _check_host(self, headers: Headers) -> None:
        """Refuse names that lead here by a trick: a browser's page would then be of our origin."""
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            name = ""
        if not (is_loopback(name) or name == self._settings.host):
            raise HTTPException(
                403,
                f"the host {name!r} is not allowed while there are no tokens; use localhost or "
                "127.0.0.1, or make a token with 'fib serve token add'",
            )

    def _check_limit(self, scope: Scope, token: Optional[Token]) -> None:
        if token is LOCAL:
            return
        client = scope.get("client")
        name = f"token {token.name}" if token else f"address {client[0] if client else ''}"
        wait = self._limit.take(name)
        if wait:
            raise HTTPException(
                429,
                f"too many requests; {self._settings.requests_per_minute} a minute are allowed",
                {"Retry-After": str(math.ceil(wait))},
            )

    async def _read(self, headers: Headers, receive: Receive, token: Optional[Token]) -> Receive:
        """Read the whole body, unless it is too large; return what gives it once more."""
        most = self._settings.max_body_bytes
        if token is None:
            most = min(most, _ANONYMOUS_BODY)
        told = headers.get("content-length", "0")
        if told.isdecimal() and int(told) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            with anyio.fail_after(_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Gone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise HTTPException(
                408, f"the body did not arrive within {_BODY_S:g} seconds; send it again"
            ) from None
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay


class _Gone(Exception):
    """The client has closed the connection."""


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is too large; at most {most} bytes are allowed")


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _check_origin(headers: Headers, *, must_tell: bool) -> None:
    """Refuse what a page of another site had a browser send."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    elif origin is not None:
        ours = urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    else:
        ours = not must_tell
    if not ours:
        raise HTTPException(403, "this request comes from a page of another site")
