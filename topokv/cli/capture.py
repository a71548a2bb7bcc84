"""`topokv capture`: a model's q, K and V over a text, into a file for the other commands."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from topokv.core import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "--model", type=Path, required=True, help="a transformers model's folder, or a GGUF file"
    )
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 text file to run it over")
    parser.add_argument("--output", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the text (8192)")
    parser.add_argument("--positions", type=int, default=4, help="queries kept of each layer (4)")
    parser.add_argument("--layers", default="all", help="layers to keep: all, or 3,17 (all)")
    parser.add_argument(
        "--model-dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="the type that the model runs in (float32)",
    )
    parser.add_argument("--device", default="cpu", help="where the model runs (cpu)")


def run(args: argparse.Namespace) -> int:
    """Capture, after everything that can be checked without the model was checked."""
    from topokv.inputs import (
        Wish,
        capture_text,
        file_text,
        load_model,
        require_device,
        save_capture,
    )

    wish = Wish(args.tokens, args.positions, parse_layers(args.layers))
    check_output(args.output)
    require_device(args.device)
    text = file_text(args.text)
    with Progress("capture") as progress:
        progress.show(f"loading {args.model}")
        model = load_model(args.model, dtype=args.model_dtype, device=args.device)
        capture, left_out = capture_text(model, text, wish, progress.show)
    for layer, reason in left_out.items():
        print(f"topokv capture: layer {layer} is left out: {reason}", file=sys.stderr)
    save_capture(args.output, capture)
    print(f"{args.output}: {len(capture.layers)} layers, {args.tokens} tokens")
    return 0


def parse_layers(text: str) -> tuple[int, ...] | None:
    """Layer numbers of `3,17`; None of `all`."""
    if text == "all":
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"layers must be 'all' or numbers such as '3,17', got {text!r}")
    return tuple(int(part) for part in parts)


def check_output(path: Path) -> None:
    """Raise ValueError unless a file can be written at `path`: found before the work, not after."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"output {str(path)!r}: can't write into the folder {str(path.parent)!r}")
    if path.is_dir():
        raise ValueError(f"output {str(path)!r} is a folder; name a file in it")
