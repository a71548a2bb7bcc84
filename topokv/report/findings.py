"""The answer in words: which selector at the headline budget, what it gains, and how sure that is.

Selectors are compared on real caches only, setting by setting, where a setting is everything but
the selector. `random` and `oracle` are the ends of the scale and are never recommended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias

from topokv.report.entries import Entry, MachineKey
from topokv.report.numbers import shown
from topokv.results import KEY_FIELDS

HEADLINE_TOKENS = 1024
# More machines and workloads than this are left to the table.
MOST_GAINS = 6
# A smaller gain or loss than this is none.
_NO_CHANGE = 0.02
# What differs between rows that ask the same of two selectors.
_OF_SELECTOR = ("selector", "sharing")
ENDS_OF_SCALE = ("random", "oracle")

Sureness = Literal["clear", "likely", "cannot tell"]
# A setting's entries by selector.
Setting: TypeAlias = dict[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The selector to use at a budget, against the next best, over some settings."""

    selector: str
    tokens: int
    seq_lens: tuple[int, ...]
    best: Place
    runner_up: Place | None
    num_settings: int
    num_won: int
    num_apart: int | None
    workloads: tuple[str, ...]

    @property
    def sureness(self) -> Sureness:
        """Clear: first in every setting, intervals apart. Likely: first in every setting."""
        if self.runner_up is None or self.num_won < self.num_settings:
            return "cannot tell"
        return "clear" if self.num_apart == self.num_settings else "likely"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one selector keeps at the headline budget, mean over settings.

    `low` and `high` are the outermost ends of the settings' intervals of gap_closed.
    """

    selector: str
    recall: float
    gap_closed: float | None
    low: float | None
    high: float | None


def headline_tokens(entries: Iterable[Entry]) -> int | None:
    """HEADLINE_TOKENS where some row measured it, else the largest budget below, else the least."""
    budgets = sorted({e.row.selected_tokens for e in entries if e.row.selected_tokens is not None})
    below = [budget for budget in budgets if budget <= HEADLINE_TOKENS]
    return below[-1] if below else budgets[0] if budgets else None


def choose(entries: Sequence[Entry]) -> Choice | None:
    """The selector that keeps most at the headline budget; None without a real cache's rows."""
    ranked = usable(entries)
    return _choice(ranked, _headline_settings(entries)) if ranked else None


def ranking(entries: Sequence[Entry]) -> list[Place]:
    """Every selector that all settings of the headline budget have, the one that keeps most first.

    The ends of the scale are among them.
    """
    return _places(_headline_settings(entries))


def gains(entries: Sequence[Entry], preferred: Sequence[str], tokens: int | None) -> list[Entry]:
    """For each machine and workload, the row of the longest context at that budget.

    Of its selectors the first of `preferred` that was measured; then any, for attending costs the
    same whoever chose.
    """
    found: dict[Any, Entry] = {}
    for entry in entries:
        row = entry.row
        right = row.selected_tokens == tokens and row.status == "ok"
        if right and entry.metric("speedup") is not None:
            key = (entry.machine, row.dtype, row.workload)
            rank = _rank(entry, preferred)
            if key not in found or rank > _rank(found[key], preferred):
                found[key] = entry
    return list(found.values())


def _rank(entry: Entry, preferred: Sequence[str]) -> tuple[int, int]:
    selector = str(entry.row.selector)
    place = preferred.index(selector) if selector in preferred else len(preferred)
    return (entry.row.seq_len or 0, -place)


def usable(entries: Sequence[Entry]) -> list[str]:
    """The selectors of the ranking that one can use, the one that keeps most first."""
    return [p.selector for p in ranking(entries) if p.selector not in ENDS_OF_SCALE]


def beside(entries: Iterable[Entry], gain: Entry, selector: str) -> Entry | None:
    """The row that differs from `gain` in its selector alone, on the same machine."""
    names = [name for name in KEY_FIELDS if name not in _OF_SELECTOR]
    asked = [getattr(gain.row, name) for name in names]
    for entry in entries:
        same = (entry.machine, entry.row.selector) == (gain.machine, selector)
        if same and [getattr(entry.row, name) for name in names] == asked:
            return entry
    return None


def worth(entry: Entry) -> str:
    """Whether a step with its choosing is faster than dense: yes, no and why, or cannot tell."""
    step, attend = entry.metric("step_speedup"), entry.metric("speedup")
    if step is None or any(flag.startswith("unstable") for flag in entry.row.flags):
        return "cannot tell"
    if step > 1 + _NO_CHANGE:
        return "yes"
    if step >= 1 - _NO_CHANGE:
        return "no difference"
    return "no, choosing costs more than it saves" if attend and attend > 1 else "no"


def _headline_settings(entries: Iterable[Entry]) -> list[Setting]:
    """The settings of the headline budget on real caches.

    Runs of kind quality are the better evidence, with more queries, and are used where there are.
    """
    fit = [entry for entry in entries if _is_evidence(entry)]
    evidence = [entry for entry in fit if entry.run.kind == "quality"] or fit
    tokens = headline_tokens(evidence)
    return _comparable(_settings(e for e in evidence if e.row.selected_tokens == tokens))


def _is_evidence(entry: Entry) -> bool:
    row = entry.row
    chosen = "no-scored-block" not in row.flags and row.selected_tokens != row.seq_len
    return row.status == "ok" and chosen and row.metrics.get("recall") is not None


def _settings(entries: Iterable[Entry]) -> list[Setting]:
    settings: dict[Any, Setting] = defaultdict(dict)
    names = [name for name in KEY_FIELDS if name not in (*_OF_SELECTOR, "attention")]
    for entry in entries:
        key = tuple(getattr(entry.row, name) for name in names)
        settings[key].setdefault(str(entry.row.selector), entry)
    return list(settings.values())


def _comparable(settings: list[Setting]) -> list[Setting]:
    """The settings that have every selector which at least half of them have.

    So neither a selector tried once nor a run cut short decides what is compared.
    """
    counts = Counter(name for setting in settings for name in setting)
    usual = {name for name, count in counts.items() if 2 * count >= len(settings)}
    return [setting for setting in settings if usual <= setting.keys()]


def _places(settings: Sequence[Setting]) -> list[Place]:
    if not settings:
        return []
    common = set.intersection(*(set(setting) for setting in settings))
    places = [_place(settings, name) for name in settings[0] if name in common]
    return sorted(places, key=lambda place: -place.recall)


def _place(settings: Sequence[Setting], selector: str) -> Place:
    closed = _cells(settings, selector, "gap_closed")
    lows = _cells(settings, selector, "gap_closed_low")
    highs = _cells(settings, selector, "gap_closed_high")
    return Place(
        selector=selector,
        recall=fmean(_cells(settings, selector, "recall")),
        gap_closed=fmean(closed) if closed else None,
        low=min(lows, default=None),
        high=max(highs, default=None),
    )


def _cells(settings: Sequence[Setting], selector: str, metric: str) -> list[float]:
    cells = (setting[selector].metric(metric) for setting in settings)
    return [cell for cell in cells if cell is not None]


def _choice(ranked: Sequence[str], settings: Sequence[Setting]) -> Choice:
    best, rest = ranked[0], ranked[1:]
    rows = [setting[best].row for setting in settings]
    return Choice(
        selector=best,
        tokens=rows[0].selected_tokens or 0,
        seq_lens=tuple(sorted({row.seq_len for row in rows if row.seq_len is not None})),
        best=_place(settings, best),
        runner_up=_place(settings, rest[0]) if rest else None,
        num_settings=len(settings),
        num_won=sum(_wins(setting, best, rest) for setting in settings),
        num_apart=_num_apart(settings, best, rest),
        workloads=tuple(dict.fromkeys(str(row.workload) for row in rows)),
    )


def _wins(setting: Setting, best: str, rest: Sequence[str]) -> bool:
    own = setting[best].metric("recall") or 0.0
    return all(own > (setting[name].metric("recall") or 0.0) for name in rest)


def _num_apart(settings: Sequence[Setting], best: str, rest: Sequence[str]) -> int | None:
    """In how many settings the best's interval lies above all others; None without intervals."""
    lows = [setting[best].metric("gap_closed_low") for setting in settings]
    if any(low is None for low in lows):
        return None
    return sum(
        all((setting[name].metric("gap_closed_high") or 1.0) < (low or 0.0) for name in rest)
        for setting, low in zip(settings, lows, strict=True)
    )


def sentences(entries: Sequence[Entry], names: dict[MachineKey, str]) -> list[str]:
    """The whole answer, one sentence a line: which selector, how sure, and what each machine gains.

    Machines beyond MOST_GAINS are left to the table.
    """
    choice = choose(entries)
    told, why = answer(choice)
    tokens = choice.tokens if choice else headline_tokens(entries)
    found = gains(entries, usable(entries), tokens)
    sure = [f"How sure: {choice.sureness}. {why}"] if choice else []
    return [told, *sure, *(gained(entry, names[entry.machine]) for entry in found[:MOST_GAINS])]


def answer(choice: Choice | None) -> tuple[str, str]:
    """Which selector to use, in a sentence, and in another what makes that sure or not."""
    if choice is None:
        return "No run on a real model's cache is here, so no selector can be recommended.", ""
    return _told(choice), _why(choice)


def _told(choice: Choice) -> str:
    ends = dict.fromkeys((choice.seq_lens[0], choice.seq_lens[-1])) if choice.seq_lens else ()
    of = " to ".join(f"{length:,}" for length in ends)
    verb = "no selector is surely best; most kept" if choice.sureness == "cannot tell" else "use"
    closed = ""
    if choice.best.gap_closed is not None:
        share = shown(choice.best.gap_closed, "%")
        closed = f", {share} of the way from random choice to the oracle"
    kept = f"it keeps {shown(choice.best.recall, '%')} of the attention{closed}"
    return f"At {choice.tokens:,} of {of} tokens {verb} {choice.selector}: {kept}."


def _why(choice: Choice) -> str:
    if choice.runner_up is None:
        return "No other selector was measured beside it."
    settings = "setting" if choice.num_settings == 1 else "settings"
    won = f"First in {choice.num_won} of {choice.num_settings} {settings}"
    next_best = (
        f"{choice.runner_up.selector} is next and keeps {shown(choice.runner_up.recall, '%')}"
    )
    apart = {
        None: "no intervals were measured",
        choice.num_settings: "their 95 % intervals never touch",
    }.get(choice.num_apart, f"their 95 % intervals are apart in {choice.num_apart} of them")
    return f"{won} ({', '.join(choice.workloads)}); {next_best}; {apart}."


def gained(entry: Entry, name: str) -> str:
    """What one machine gains on one row, with the interval and any doubt about it."""
    row = entry.row
    step = entry.metric("step_speedup")
    counted = f", {shown(step)} with choosing them counted" if step is not None else ""
    doubt = next((f" Beware: {flag}." for flag in row.flags if flag.startswith("unstable")), "")
    return (
        f"On {name}, {row.workload}, {row.dtype}, {row.selector}: attending "
        f"{row.selected_tokens:,} of {row.seq_len:,} tokens is {shown(entry.metric('speedup'))} "
        f"times as fast as dense{_interval(entry)}{counted}.{doubt}"
    )


def _interval(entry: Entry) -> str:
    """How far the speedup can be trusted, in brackets."""
    low, high = entry.metric("speedup_low"), entry.metric("speedup_high")
    if low is None or high is None:
        return " (no interval)"
    processes = entry.metric("num_processes")
    over = f" over {processes:.0f} processes" if processes else ""
    return f" (95 % interval {shown(low)}–{shown(high)}{over})"
