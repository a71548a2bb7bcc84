"""What the extra `report` installs: asked for by name, refused in one line that says the remedy."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtraError(ValueError):
    """A package of the extra `report` that is not installed."""


def need(package: str) -> Any:
    """The package, imported; MissingExtraError with the remedy where it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtraError(
            f"it needs {package}, which is not installed; pip install 'topokv[report]'"
        ) from error
