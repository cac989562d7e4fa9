"""A page where a text can be typed and its explanation seen, by Gradio: `pip install gradio`, then run this file."""

from __future__ import annotations

from functools import cache
from typing import Any

from decompx_fast import DecompX


@cache
def explainer() -> DecompX:
    """The embedded sentiment model; put your own in its place."""
    return DecompX.demo()


def explain(text: str) -> str:
    """The explanation as HTML, which is escaped and needs no scripts."""
    if not text.strip():
        return "<p>Type a text.</p>"
    return explainer()(text).to_html()


def page() -> Any:
    """The page (``gradio.Blocks``)."""
    import gradio

    with gradio.Blocks(title="decompx_fast") as blocks:
        text = gradio.Textbox(label="Text", value="The plot is thin, but the two leads are a joy to watch.")
        shown = gradio.HTML()
        text.submit(explain, text, shown)
        blocks.load(explain, text, shown)
    return blocks


def main() -> None:
    """Serve the page on this machine alone."""
    page().launch(server_name="127.0.0.1")


if __name__ == "__main__":
    main()
