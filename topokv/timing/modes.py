"""Which ways of timing run on which backend; no torch."""

from __future__ import annotations

from dataclasses import dataclass

GRAPHS = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class Modes:
    """Ways of timing: `headline` gives the columns' times; the others stand beside it."""

    headline: str
    wall: bool
    graph: bool


def choose_modes(backend: str, *, graphs: str = "auto") -> Modes:
    """The ways of timing for a backend.

    The CPU has one clock. CUDA is timed by events, by the wall and by graph replay; on ROCm graphs
    crash with some versions, so they run only where asked for.
    """
    if graphs not in GRAPHS:
        raise ValueError(
            f"unknown graphs {graphs!r}; expected one of {', '.join(map(repr, GRAPHS))}"
        )
    if backend == "cpu":
        return Modes("perf_counter", wall=False, graph=False)
    if backend not in ("cuda", "rocm"):
        raise ValueError(f"unknown backend {backend!r}; expected one of 'cpu', 'cuda', 'rocm'")
    wanted = graphs == "on" or (graphs == "auto" and backend == "cuda")
    return Modes("events", wall=True, graph=wanted)
