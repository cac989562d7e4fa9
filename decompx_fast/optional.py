"""Packages that only some functions need, imported when they are called."""

import importlib
from typing import Any

from .errors import DecompXError


class MissingPackageError(DecompXError, ImportError):
    """A package that is not installed and that only this function needs; says how to install it."""


def import_optional(name: str, needed_by: str, *, extra: str | None = None) -> Any:
    """Import a module that not everybody has installed.

    Args:
        name: of the module; its first part is the package.
        needed_by: the function that needs it, for the message.
        extra: of this package, which brings it along.

    Raises:
        MissingPackageError: if it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        hint = f", or install decompx-fast with its extra [{extra}]" if extra else ""
        raise MissingPackageError(
            f"{needed_by} needs {package}, which cannot be imported here ({error}). Install it with "
            f"`pip install {package}`{hint}.",
            name=name,
        ) from error
