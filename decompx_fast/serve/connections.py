"""Connections that clients hold open: how many, and how long a client may take for the head of a request, or to read
an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .refusals import Refusal
from .settings import Limits


def protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with the limits of a service: it waits for as long as a client likes by itself."""

    class Connection(H11Protocol):
        _refused = False
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= limits.connections:
                self._refused, self.transport = True, transport
                self._refuse(Refusal(503, "TooManyConnections", "too many are connected: ask again later"))
                return
            super().connection_made(transport)
            self._expect_more()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            if not self._refused:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused or self.transport.is_closing():
                return
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:  # the head is there; the guard waits for the body
                self._expect_nothing()
            elif self._timer is None:
                self._expect_more()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_nothing()
            self._timer = self.loop.call_later(limits.receive_s, self.transport.abort)

        def resume_writing(self) -> None:
            self._expect_nothing()
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal(400, "BadRequest", "this is no HTTP request that can be read"))

        def _expect_more(self) -> None:
            late = Refusal(408, "RequestTimeout", f"the request did not come within {limits.receive_s:g} s")
            self._timer = self.loop.call_later(limits.receive_s, self._refuse, late)

        def _expect_nothing(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, refusal: Refusal) -> None:
            """Answer what has come to no request, unless an answer is under way, and close."""
            if self.cycle is None or self.cycle.response_complete:
                body = refusal.body("")
                head = (
                    f"HTTP/1.1 {refusal.status} {refusal.type}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
            self.transport.close()

    return Connection
