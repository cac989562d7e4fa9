"""Explanations for people: in the terminal, as HTML, and as a plot."""

from .page import page_chunks, page_end, render_fragment, render_list, render_page
from .pair_view import show_pair, terminal_pair
from .plot import plot
from .terminal import progress_bar, show, terminal_view

__all__ = [
    "page_chunks",
    "page_end",
    "plot",
    "progress_bar",
    "render_fragment",
    "render_list",
    "render_page",
    "show",
    "show_pair",
    "terminal_pair",
    "terminal_view",
]
