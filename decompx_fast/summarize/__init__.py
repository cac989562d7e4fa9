"""What many explanations say together: for each target the words that speak for and against it."""

from .summary import Contrast, Summary, Word, contrast
from .tally import summarize

__all__ = ["Contrast", "Summary", "Word", "contrast", "summarize"]
