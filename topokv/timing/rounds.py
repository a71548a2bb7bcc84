"""Interleaved rounds: every arm once a round, in shuffled order, so that noise meets all alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, TypeAlias

from topokv.stats import half_width, median, median_interval, paired_ratios
from topokv.timing.faults import minor_faults

Call: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Arm:
    """A thing to time. `every` n-th round runs it: what is paired runs in each round.

    `ready` gives the call that is timed and is not timed itself: arms that share buffers load them
    there. `repeat` times the same call again at once, for the warm column.
    """

    name: str
    ready: Callable[[], Call]
    every: int = 1
    repeat: bool = False

    @staticmethod
    def of(name: str, call: Call, *, every: int = 1, repeat: bool = False) -> Arm:
        """An arm whose call is always ready."""
        return Arm(name, lambda: call, every, repeat)


class Clock(Protocol):
    """How one call is timed on one kind of device."""

    def cool(self) -> object:
        """Leave the caches holding other data than the arms'."""

    def milliseconds(self, call: Call) -> float:
        """The time of one call, finished on the device."""


@dataclass(slots=True)
class Samples:
    """One arm's times in ms, one a round; `faults` are the minor page faults of its cold calls."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StopRule:
    """When enough rounds have run.

    At `max_rounds`, at `max_seconds`, or once every watched ratio is known: the half width of its
    median's interval is under `half_width`. Standard deviations stop nothing: a slow drift has a
    small one.
    """

    max_rounds: int
    max_seconds: float = math.inf
    min_rounds: int = 10
    half_width: float = 0.01

    def reached(self, num_rounds: int, seconds: float, ratios: Sequence[Sequence[float]]) -> bool:
        if num_rounds >= self.max_rounds or seconds >= self.max_seconds:
            return num_rounds > 0
        if num_rounds < self.min_rounds or not ratios:
            return False
        # Sorting every ratio after every round would itself disturb the caches.
        return num_rounds % 5 == 0 and all(self._known(values) for values in ratios)

    def _known(self, values: Sequence[float]) -> bool:
        return bool(values) and half_width(median_interval(values)) < self.half_width


Pair = tuple[str, str]


def measure(
    arms: Sequence[Arm],
    clock: Clock,
    stop: StopRule,
    *,
    warmup: int,
    pairs: Sequence[Pair] = (),
    seed: int = 0,
) -> dict[str, Samples]:
    """The samples of each arm by its name.

    `pairs` name the (numerator, denominator) arms whose ratio decides when to stop. The order is
    shuffled by `seed` alone; no global random state is read or changed.
    """
    _warm_up(arms, warmup, stop.max_seconds)
    samples = {arm.name: Samples() for arm in arms}
    order = random.Random(seed)
    start = perf_counter()
    num_rounds = 0
    while not stop.reached(num_rounds, perf_counter() - start, _ratios(samples, pairs)):
        due = [arm for arm in arms if num_rounds % arm.every == 0]
        order.shuffle(due)
        for arm in due:
            _sample(arm, clock, samples[arm.name])
        num_rounds += 1
    return samples


def _warm_up(arms: Sequence[Arm], rounds: int, max_seconds: float) -> None:
    """Untimed rounds, no more than fit half of the time cap: slow calls need few."""
    start = perf_counter()
    for _ in range(rounds):
        for arm in arms:
            arm.ready()()
        if perf_counter() - start > max_seconds / 2:
            return


def _ratios(samples: Mapping[str, Samples], pairs: Sequence[Pair]) -> list[list[float]]:
    return [paired_ratios(samples[top].cold, samples[bottom].cold) for top, bottom in pairs]


def _sample(arm: Arm, clock: Clock, samples: Samples) -> None:
    call = arm.ready()
    clock.cool()
    before = minor_faults()
    samples.cold.append(clock.milliseconds(call))
    after = minor_faults()
    if before is not None and after is not None:
        samples.faults.append(after - before)
    if arm.repeat:
        samples.warm.append(clock.milliseconds(call))


def median_faults(samples: Samples) -> float | None:
    """Minor page faults of a typical call; None where the platform does not count them.

    The median, as for the times: one call that met the kernel's housekeeping is not a typical one.
    """
    return median(samples.faults) if samples.faults else None
