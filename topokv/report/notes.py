"""What a row wants said beside its numbers: why there are none, or what to know before trusting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topokv.report.entries import Entry
from topokv.stats import AA_BAND

# The flags that rows carry, up to a colon, and what each means to a reader.
FLAGS: dict[str, str] = {
    "unstable": "noise moved this number; measure again on a quiet machine",
    "no-graph": "no CUDA graph could be made of it, so what launching costs is not known",
    "launch-bound": "starting the kernels takes longer than their work",
    "cache-resident": "K and V fit in the cache, so cold and warm differ little",
    "math-fallback": "an arm ran SDPA's slow MATH path, which makes a ratio mean something else",
    "no-scored-block": "sinks and the newest blocks fill this budget: the selector had no say",
    "no-break-even": "a step with selection is not faster than dense, so the summary never pays",
    "gaussian": "random keys: recall and error mean nothing here",
}


# A flag with more different details than this is told once, without them.
MOST_DETAILS = 4


@dataclass(frozen=True, slots=True)
class Notes:
    """Numbered notes of a section: `texts` in order, and the number of each remark's note."""

    texts: tuple[str, ...]
    numbers: dict[str, int]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Notes:
        found = dict.fromkeys(remark for entry in entries for remark in remarks(entry))
        details = Counter(name_of(remark) for remark in found)
        told = {
            remark: explained(
                remark if details[name_of(remark)] <= MOST_DETAILS else name_of(remark)
            )
            for remark in found
        }
        texts = tuple(dict.fromkeys(told.values()))
        return cls(texts, {remark: texts.index(text) + 1 for remark, text in told.items()})

    def marks(self, entries: Iterable[Entry]) -> str:
        """The numbers of the notes that `entries` carry, such as `1,3`."""
        found = {self.numbers[remark] for entry in entries for remark in remarks(entry)}
        return ",".join(map(str, sorted(found)))

    def numbered(self) -> list[str]:
        return [f"{i}. {text}" for i, text in enumerate(self.texts, start=1)]


def remarks(entry: Entry) -> list[str]:
    """What must be said of the entry: how it ended if not well, then its flags."""
    row = entry.row
    why_not = entry.compared.why_not if entry.compared else None
    judged = [f"no verdict: {why_not}"] if why_not else []
    ended = [] if row.status == "ok" else [ending(row.status, row.step, row.reason)]
    told = [flag for flag in row.flags if flag != "gaussian" and not is_judgement(flag)]
    return ended + judged + told


def random_keys(entries: Sequence[Entry]) -> str:
    """What to know of all rows on random keys; empty where there are none."""
    return FLAGS["gaussian"] if any("gaussian" in entry.row.flags for entry in entries) else ""


def dense_against_dense(entries: Sequence[Entry]) -> str:
    """How far noise alone moved a ratio: the A/A arm of every row, from least to most."""
    found = [ratio for entry in entries if (ratio := entry.metric("aa_ratio")) is not None]
    if not found:
        return ""
    said = " to ".join(f"{ratio:.3f}" for ratio in dict.fromkeys((min(found), max(found))))
    return f"A/A, dense over dense in the same rounds: {said} (quiet: 1 ± {AA_BAND})"


def is_judgement(flag: str) -> bool:
    """Whether the flag compares a selector with another, which has a column of its own."""
    return flag.startswith(("better than ", "worse than ", "cannot tell from "))


def name_of(remark: str) -> str:
    """The flag of a remark, without its detail; an ending is its own name."""
    name = remark.partition(":")[0].strip()
    return name if name in FLAGS else remark


def ending(status: str, step: str | None, reason: str | None) -> str:
    """How something that did not finish ended: `failed at verify: wrong build`."""
    at = f"{status} at {step}" if step else status
    return f"{at}: {reason}" if reason else f"{at}: no reason recorded"


def explained(flag: str) -> str:
    """The flag with what it means; the part after its colon is the row's own detail."""
    name, _, detail = flag.partition(":")
    if name.strip() not in FLAGS:
        return flag
    said = f"{name.strip()} ({detail.strip()})" if detail.strip() else name.strip()
    return f"{said}: {FLAGS[name.strip()]}"
