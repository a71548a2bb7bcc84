"""Numbers as a person reads them."""

from __future__ import annotations

from topokv.report.entries import Cell

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def shown(value: Cell, unit: str = "", digits: int = 3) -> str:
    """`value` as text in its unit: empty for None, text as it is, counts whole.

    Milliseconds and GB/s carry no unit here: the column's name does.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "%":
        # Adding 0 turns -0.0 into 0.0.
        return f"{round(100 * value, 1) + 0:.1f} %"
    if unit == "change":
        return f"{100 * value:+.1f} %"
    if unit == "bytes":
        return _bytes(value)
    if unit == "count":
        return f"{value:.0f}"
    return significant(value, digits) + ("x" if unit == "x" else "")


def significant(value: float, digits: int = 3) -> str:
    """`value` to that many significant digits, never in powers of ten between 1e-4 and 1e7."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    # The exponent after rounding: 9.996 has two digits before the point.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def _bytes(value: float) -> str:
    size, step = float(value), 0
    while size >= 1024 and step < len(_BINARY) - 1:
        size, step = size / 1024, step + 1
    return f"{significant(size)} {_BINARY[step]}"
