"""The templates of pages, and what all of them know."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from .display import AGAINST_RGB, FOR_RGB

MAX_ALPHA = 0.6  # of the colour behind text, so that it stays readable on light and dark


@cache
def template(name: str) -> jinja2.Template:
    """A template by the name of its file; whatever it is given is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def constants() -> dict[str, Any]:
    """What the style sheet needs, and that it is no page, which has a script."""
    return {
        "for_rgb": " ".join(map(str, FOR_RGB)),
        "against_rgb": " ".join(map(str, AGAINST_RGB)),
        "max_alpha": MAX_ALPHA,
        "page": False,
    }


@cache
def page_script() -> dict[str, Any]:
    """The script of a page, and the hash by which the page's policy allows it and no other."""
    text = Path(__file__).with_name("templates").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"page": True, "script": text, "script_hash": f"sha256-{digest}"}
