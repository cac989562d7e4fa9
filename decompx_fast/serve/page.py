"""The page at /: a form and what the library shows of a text. No scripts, nothing to be loaded, and a policy that
allows neither."""

from __future__ import annotations

import re
import secrets
from functools import cache
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from ..config import BiasRule
from .guard import same
from .refusals import Refusal, of_validation
from .schemas import Options
from .service import Service

router = APIRouter(include_in_schema=False)

#: Fields of the form.
_FIELDS = ("text", "text_pair", "model", "bias", "words", "key")


@router.get("/")
async def form(request: Request) -> HTMLResponse:
    """The form by itself."""
    return _page(request.app.state.service, {})


@router.post("/")
async def explained(request: Request) -> HTMLResponse:
    """The form and what was asked by it."""
    service: Service = request.app.state.service
    given: dict[str, str] = {}
    try:
        given = _read(await request.body())
        _check_key(service, given.pop("key", ""))
        text, pair = given.get("text", ""), given.get("text_pair", "")
        if not text.strip():
            raise Refusal(422, "InputError", "There is no text yet: type one.", "text")
        outcomes = await service.explain(
            request.scope["about"],
            service.backend(given.get("model") or None),
            [(text, pair) if pair.strip() else text],
            _options(given),
            form="page",
            words=bool(given.get("words")),
        )
    except Refusal as refusal:
        return _page(service, given, problem=refusal.message, status=refusal.status, headers=refusal.headers)
    return _page(service, given, found=outcomes[0].html)


def _read(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=len(_FIELDS), errors="strict"))
    except ValueError:
        raise Refusal(422, "InputError", "The form cannot be read: send it from the page.", "body") from None


def _check_key(service: Service, shown: str) -> None:
    key = service.settings.api_key
    if key is not None and not same(shown, key.get_secret_value()):
        raise Refusal(401, "Unauthorized", "The key is missing or wrong.", "key")


def _options(given: dict[str, str]) -> Options:
    try:
        return Options(bias=given.get("bias") or None)  # type: ignore[arg-type]
    except ValidationError as error:
        raise of_validation(error.errors()) from None


def _page(
    service: Service,
    given: dict[str, str],
    *,
    found: str = "",
    problem: str = "",
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> HTMLResponse:
    nonce = secrets.token_urlsafe(16)
    fragment, styles = without_inline_styles(found)
    text = _template().render(
        nonce=nonce,
        given=given,
        models=list(service.backends),
        rules=get_args(BiasRule),
        needs_key=service.settings.api_key is not None,
        found=fragment.replace("<style>", f'<style nonce="{nonce}">'),
        styles=styles,
        problem=problem,
    )
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(text, status, {**(headers or {}), "content-security-policy": policy})


def without_inline_styles(fragment: str) -> tuple[str, list[tuple[str, str]]]:
    """A fragment whose elements have marks in the place of ``style`` attributes, which a policy with nonces does not
    allow; and what each mark stands for. A text cannot look like one: its quotation marks are escaped."""
    marks: dict[str, str] = {}

    def mark(found: re.Match[str]) -> str:
        return f'data-dx-style="{marks.setdefault(found[1], str(len(marks)))}"'

    fragment = re.sub(r'style="([^"]*)"', mark, fragment)
    return fragment, [(number, declarations) for declarations, number in marks.items()]


@cache
def _template() -> Any:
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja")
