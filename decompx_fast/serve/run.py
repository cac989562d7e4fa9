"""A service from its start to its end: listening, and finishing what is in flight when it is told to end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn

from ..errors import DecompXError, InputError
from .app import create_app
from .connections import protocol_of
from .logs import log, log_to_stderr
from .settings import Settings

#: Connections without a request are kept for so long.
_KEEP_ALIVE_S = 30


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, and then finish what is in flight.

    Args:
        settings: of the service.

    Raises:
        DecompXError: if a model cannot be loaded, or the address cannot be listened on.
    """
    log_to_stderr(with_messages=settings.log_texts)
    failures: list[DecompXError] = []

    def failed(error: DecompXError) -> None:
        failures.append(error)
        server.should_exit = True

    with closing(listening(settings)) as listener:
        server = server_of(settings, create_app(settings, failed=failed))
        host, port = listener.getsockname()[:2]
        log("listening", host=host, port=port, models=list(settings.models), key=settings.api_key is not None)
        with _signals_are_answered():
            server.run(sockets=[listener])
    log("ended")
    if failures:
        raise failures[0]


def server_of(settings: Settings, app: Any) -> uvicorn.Server:
    """What serves an application within the limits of a service."""
    config = uvicorn.Config(
        app,
        http=protocol_of(settings.limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.limits.shutdown_s)),
    )
    return uvicorn.Server(config)


def listening(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say.

    Raises:
        InputError: if it cannot.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"host={settings.host!r}, port={settings.port}: cannot be listened on ({reason}): use others"
        ) from error


@contextmanager
def _signals_are_answered() -> Iterator[None]:
    """uvicorn raises the signals that it has heard once more at its end, when they have been answered."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
