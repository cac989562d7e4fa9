"""What a service is told before it begins: its models, where it listens, its limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from ..errors import InputError, OptionError, shown
from ..optional import import_optional
from .schemas import Options

#: The variable of the environment that may hold the key which requests have to show.
KEY_VARIABLE = "DECOMPX_FAST_API_KEY"

#: Processes for a model on the CPU where none are asked for: each holds the model.
MOST_WORKERS = 4

#: What a model may be called: part of a path of the service, and never of one of the file system.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Checked):
    """What a request may cost.

    Attributes:
        body_bytes: of a request at most; more is answered with 413.
        texts: of one request.
        tokens: of one text, or pair.
        queue: texts that wait for a model, beside those that are computed; more are answered with 429.
        batch: texts that a process is given at once.
        batch_characters: of all of them together, unless it is one text: what is begun is not stopped for what comes.
        timeout_s: from the last byte of a request to its answer; then what is left of it is dropped (504).
        receive_s: for all bytes of a request to come (408).
        connections: at one time; more are closed.
        shutdown_s: for what is in flight, after SIGTERM.
    """

    body_bytes: Count = 1 << 20
    texts: Count = 64
    tokens: Count = 1024
    queue: Count = 256
    batch: Count = 32
    batch_characters: Count = 16_384
    timeout_s: Seconds = 30.0
    receive_s: Seconds = 10.0
    connections: Count = 256
    shutdown_s: Seconds = 60.0


class ModelSettings(_Checked):
    """One model.

    Attributes:
        path: a folder, or the id of a hub; ``None``: the embedded demo model.
        task: which head to load, as for :meth:`DecompX.from_pretrained`.
        device: where to compute, or several, in turn for each process.
        workers: processes; ``None``: one for each device that is named, or each core but 4 at most, over all models.
        threads: of a process on the CPU. More make one long text faster, but fewer of them, and round otherwise.
        dtype: as for :class:`DecompX`.
        options: those of each request that does not say otherwise.
    """

    path: str | None = None
    task: str | None = None
    device: str | tuple[str, ...] = ()
    workers: Count | None = None
    threads: Count = 1
    dtype: str | None = None
    options: Options = Options()

    @property
    def devices(self) -> tuple[str, ...]:
        """Where to compute; empty for the CPU."""
        return (self.device,) if isinstance(self.device, str) else self.device


class Settings(_Checked):
    """A service.

    Attributes:
        models: by the names that requests use.
        host: where to listen; a machine of its own address is reached from others.
        port: 0 for any that is free.
        hosts: the names by which it may be called (the header ``Host``); empty: on the loopback those of the loopback,
            and otherwise any.
        api_key: which each request has to show, but those for health and the empty page.
        log_texts: whether texts may be in the log.
        limits: what requests may cost.
    """

    models: Annotated[dict[Annotated[str, Field(pattern=NAME)], ModelSettings], Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 8000
    hosts: tuple[str, ...] = ()
    api_key: SecretStr | None = None
    log_texts: bool = False
    limits: Limits = Limits()

    @field_validator("api_key")
    @classmethod
    def _usable(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not (key.get_secret_value().isascii() and key.get_secret_value().isprintable()):
            raise ValueError("a key has to be of ASCII characters, which a header can hold")
        if key is not None and len(key.get_secret_value()) < 8:
            raise ValueError("a key of fewer than 8 characters is guessed")
        return key

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Names by which the service may be called; none for any. A page of another site may otherwise have its own
        name lead to the loopback, and read what it gets."""
        loopback = self.host in ("localhost", "::1") or self.host.startswith("127.")
        return self.hosts or (("localhost", "127.0.0.1", "::1", self.host) if loopback else ())

    def workers_of(self, name: str) -> int:
        """How many processes compute for a model."""
        model = self.models[name]
        shared = min(os.cpu_count() or 1, MOST_WORKERS) // len(self.models)
        return model.workers or len(model.devices) or max(1, shared)


def read_settings(path: str | os.PathLike[str] | None, /, **given: Any) -> Settings:
    """The settings of a file of TOML, and those that are given beside it, which outweigh it.

    Args:
        path: the file, whose parts are those of :class:`Settings`; ``api_key_file`` in the place of the key; ``None``:
            there is none.
        **given: parts of :class:`Settings`; those that are ``None`` are not given.

    Raises:
        InputError: if the file cannot be read.
        OptionError: for a part that does not exist, or cannot have that value; says which.
    """
    found = {} if path is None else _table(path)
    found |= {name: value for name, value in given.items() if value is not None}
    if "api_key" in found and path is not None and "api_key" not in given:
        raise OptionError(f"{path}: api_key: name a file that holds it (api_key_file), or set {KEY_VARIABLE}")
    key_file = found.pop("api_key_file", None)
    if key_file is not None:
        found["api_key"] = _read(key_file, "api_key_file").strip()
    elif os.environ.get(KEY_VARIABLE):
        found.setdefault("api_key", os.environ[KEY_VARIABLE])
    try:
        return Settings(**found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f"{path}: " if path is not None else ""
        got = "" if "api_key" in place else f"={shown(first['input'])}"
        raise OptionError(f"{where}{place}{got}: {first['msg'].removeprefix('Value error, ')}") from None


def _table(path: str | os.PathLike[str]) -> dict[str, Any]:
    toml = _toml()
    try:
        found: dict[str, Any] = toml.loads(_read(path, "config"))
    except toml.TOMLDecodeError as error:
        raise InputError(f"config={os.fspath(path)!r} is no TOML: {error}") from error
    return found


def _toml() -> Any:
    try:
        return import_optional("tomllib", "a configuration")
    except ImportError:  # Python 3.10
        return import_optional("tomli", "a configuration with Python 3.10", extra="serve")


def _read(path: str | os.PathLike[str], name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}={os.fspath(path)!r} cannot be read: {reason}. Name a file of text") from error
