"""What is installed: the version, and the folder that it lies in."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# The folder of the package, beside which a checkout has its .git.
PACKAGE = Path(__file__).resolve().parents[1]
