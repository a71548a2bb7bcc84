"""Which ways of timing run on which backend; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from topokv.core import check_choice

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
    check_choice("graphs", graphs, GRAPHS)
    check_choice("backend", backend, ("cpu", "cuda", "rocm"))
    if backend == "cpu":
        return Modes("perf_counter", wall=False, graph=False)
    wanted = graphs == "on" or (graphs == "auto" and backend == "cuda")
    return Modes("events", wall=True, graph=wanted)
