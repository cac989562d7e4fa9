"""Explaining by the million: rows of files in, parts of a folder out; a run that was killed goes on where it was."""

from .results import load_results
from .run import Summary, explain_dataset

__all__ = ["Summary", "explain_dataset", "load_results"]
