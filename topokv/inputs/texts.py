"""Texts to run a model over: a file's, and three that every Python installation has.

The standard ones need no download. They differ between versions of Python, so a capture's
metadata says which version it was and which bytes.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pydoc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topokv.core import read_text


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it comes from."""

    name: str
    content: str
    title: str
    license: str

    @property
    def metadata(self) -> dict[str, str]:
        """What a capture of this text says of it."""
        digest = hashlib.sha256(self.content.encode()).hexdigest()
        return {"text": self.title, "text_license": self.license, "text_sha256": digest}


def file_text(path: Path) -> Text:
    """The text of the UTF-8 file at `path`; ValueError where it is not one or is empty."""
    try:
        content = read_text(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not content.strip():
        raise ValueError(f"{path}: the text is empty")
    return Text(path.stem, content, path.name, "unknown")


def _source() -> str:
    return inspect.getsource(importlib.import_module("argparse"))


def _language_reference() -> str:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def _api_documentation() -> str:
    return "\n".join(_documented(name) for name in ("pathlib", "logging"))


def _documented(module: str) -> str:
    shown = pydoc.plain(pydoc.render_doc(importlib.import_module(module)))
    # The closing section says where the file lies, and addresses differ from run to run.
    return re.sub(r"0x[0-9a-f]+", "0x0", shown.partition("\nFILE\n")[0])


# Code, prose, and lists of signatures: attention spreads differently over each.
STANDARD_TEXTS: dict[str, tuple[str, Callable[[], str]]] = {
    "python-source": ("source of argparse", _source),
    "language-reference": ("language reference (pydoc_data.topics)", _language_reference),
    "api-documentation": ("pydoc of pathlib and logging", _api_documentation),
}


def standard_text(name: str) -> Text:
    """The text `name` of STANDARD_TEXTS, read from the Python that runs."""
    title, read = STANDARD_TEXTS[name]
    version = ".".join(map(str, sys.version_info[:3]))
    return Text(name, read(), f"{title}, Python {version}", "PSF-2.0")
