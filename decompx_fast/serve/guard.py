"""What stands before the application: who may ask, how much, for how long; and what is said of it afterwards."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from .logs import log
from .metrics import Metrics
from .refusals import Refusal
from .settings import Settings
from .worker import place_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Paths that need no key: probes, and the page, whose form asks for it.
OPEN = ("/", "/v2/health/live", "/v2/health/ready")

#: What is asked every few seconds, and is in no log.
_PROBES = ("/v2/health/live", "/v2/health/ready", "/metrics")

#: A body that is too long is read on, up to so many times what is allowed, so that its sender reads the refusal.
_READ_ON = 8

#: The status of what nobody waits for any more, in the log alone.
GONE = 499

_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}


class Guard:
    """An ASGI application round another.

    Args:
        app: is given requests whose bodies are there as a whole, and is cancelled when its client has gone.
        settings: of the service.
        metrics: are told of each request.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.monotonic()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else uuid.uuid4().hex
        about: dict[str, Any] = {}
        scope["about"] = about  # the application says here what the log shall hold
        status = 0

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = {**_HEADERS, "x-request-id": request_id}
                known = {name.lower() for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in added.items() if n.encode() not in known]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            try:
                self._check_host(headers.get("host", ""))
                self._check_key(scope["path"], headers.get("authorization", ""))
                body = await self._body(headers, receive)
                about["bytes"] = len(body)
                if not await self._while_asked(scope, receive, answer, body):
                    status = GONE
            except Refusal as refusal:
                await refuse(refusal, scope["path"], answer)
            except Exception as error:
                log("unexpected_error", level=logging.ERROR, request_id=request_id, where=place_of(error))
                if not status:
                    await refuse(Refusal(500, "InternalError", "this is a fault of the service"), scope["path"], answer)
        finally:
            self._metrics.in_flight.dec()
            seconds = time.monotonic() - begun
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if route not in _PROBES:
                log(
                    "request",
                    request_id=request_id,
                    method=scope["method"] if len(scope["method"]) < 10 else "other",
                    route=route,
                    status=status,
                    time_ms=round(seconds * 1e3, 1),
                    **about,
                )

    def _check_host(self, host: str) -> None:
        allowed = self._settings.allowed_hosts
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if allowed and name not in allowed:
            raise Refusal(
                421, "UnknownHost", "this service is not called by that name: use one of its own", "header Host"
            )

    def _check_key(self, path: str, authorization: str) -> None:
        key = self._settings.api_key
        if key is None or path in OPEN:
            return
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() != "bearer" or not same(shown.strip(), key.get_secret_value()):
            raise Refusal(
                401,
                "Unauthorized",
                "the key is missing or wrong: send the header Authorization: Bearer KEY",
                "header Authorization",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """All of the body.

        Raises:
            Refusal: if it is too long, or takes too long to come.
        """
        limits = self._settings.limits
        too_long = Refusal(
            413, "BodyTooLarge", f"the body is longer than {limits.body_bytes:,} bytes: send fewer texts", "body"
        )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > _READ_ON * limits.body_bytes:
            raise too_long
        try:
            body, size = await asyncio.wait_for(self._received(receive), limits.receive_s)
        except asyncio.TimeoutError:
            raise Refusal(
                408, "RequestTimeout", f"the body did not come within {limits.receive_s:g} s: send it faster", "body"
            ) from None
        if size > limits.body_bytes:
            raise too_long
        return body

    async def _received(self, receive: Receive) -> tuple[bytes, int]:
        """The body, as far as it is allowed, and its length, as far as it was read."""
        limit = self._settings.limits.body_bytes
        parts, size, more = [], 0, True
        while more and size <= _READ_ON * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "Disconnected", "the body ended before it was whole: send all of it", "body")
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts), size

    async def _while_asked(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> bool:
        """Run the application until it has answered, or its client has gone: false then."""
        never = asyncio.Event()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            if parts:
                return parts.pop()
            await never.wait()
            return {"type": "http.disconnect"}

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        answering = asyncio.ensure_future(self._app(scope, replay, send))
        leaving = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return True
            return False
        finally:
            for task in (answering, leaving):
                task.cancel()
                with suppress(BaseException):
                    await task


def same(shown: str, key: str) -> bool:
    """Whether two keys are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), key.encode())


async def refuse(refusal: Refusal, path: str, send: Send) -> None:
    """Answer with an error."""
    body = refusal.body(path)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
