"""Explaining over HTTP: one process that listens, and for each model processes that compute and may end."""

from .app import create_app
from .run import run
from .settings import Limits, ModelSettings, Settings

__all__ = ["Limits", "ModelSettings", "Settings", "create_app", "run"]
