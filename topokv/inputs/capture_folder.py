"""A folder of captures: a model is run over a text once, and its capture kept for the next time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from topokv.inputs.capture_file import CaptureHeader, read_header, save_capture
from topokv.inputs.capturing import Wish, capture_text
from topokv.inputs.model import Model, load_model, model_identity
from topokv.inputs.texts import Text


@dataclass(frozen=True)
class CaptureFolder:
    """Captures of the model at `model_path`, which is loaded only if one of them is missing.

    `report` is told what a person should know, `progress` what is going on.
    """

    folder: Path
    model_path: Path
    wish: Wish
    report: Callable[[str], None] = field(default=print)
    progress: Callable[[str], None] = field(default=lambda _: None)

    def capture(self, text: Text) -> Path:
        """The file of the capture of `text`, made now unless it is there already."""
        path = self.folder / f"{self.model_path.stem}.{text.name}.safetensors"
        if self._is_kept(path, text):
            return path
        capture, left_out = capture_text(self._model, text, self.wish, self.progress)
        for layer, reason in left_out.items():
            self.report(f"layer {layer} is left out: {reason}")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_capture(path, capture)
        return path

    @cached_property
    def _model(self) -> Model:
        self.progress(f"loading {self.model_path.name}")
        return load_model(self.model_path)

    def _is_kept(self, path: Path, text: Text) -> bool:
        try:
            header = read_header(path)
        except ValueError:
            return False
        return self._fits(header, text)

    def _fits(self, header: CaptureHeader, text: Text) -> bool:
        told = {**model_identity(self.model_path), **text.metadata, **self.wish.metadata}
        same = all(header.metadata.get(name) == value for name, value in told.items())
        return same and header.positions == self.wish.positions
