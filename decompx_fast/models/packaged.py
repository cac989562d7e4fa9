"""Weights that an installed package holds."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelLoadError


@dataclass(frozen=True)
class PackagedFile:
    """A file inside a package, which need not be imported.

    Attributes:
        package: its name in the registry.
        module: its name in Python.
        file: the path inside it.
        model: what needs it, for messages.
        holds: what the file holds.
        install: the command that installs the package.
    """

    package: str
    module: str
    file: str
    model: str
    holds: str
    install: str

    def find(self) -> Path:
        """Where the file is.

        Raises:
            ModelLoadError: if the package is not installed, or has no such file.
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise ModelLoadError(
                f"{self.model} needs the package {self.package}, which holds its {self.holds} and is not installed. "
                f"Install it with `{self.install}`"
            )
        found = Path(spec.submodule_search_locations[0], self.file)
        if not found.is_file():
            raise ModelLoadError(
                f"the package {self.package} is installed, but {str(found.parent)!r} holds no {found.name}. Install it "
                f"again with `{self.install}`"
            )
        return found
