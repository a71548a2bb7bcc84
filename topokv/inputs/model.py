"""A causal language model from local files, and what those say of it. Needs the extra `capture`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from topokv.core import __version__
from topokv.tensors import DTYPES


@dataclass(frozen=True, slots=True)
class Model:
    """A causal language model, its tokenizer, and what its files say of where it comes from."""

    name: str
    identity: Mapping[str, str]
    license: str
    tokenizer: Any
    network: Any

    @property
    def metadata(self) -> dict[str, str]:
        """What a capture of this model says of it and of what ran it."""
        return {
            "model": self.name,
            **self.identity,
            "license": self.license,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "topokv": __version__,
        }

    @property
    def num_layers(self) -> int:
        return int(self.network.config.get_text_config().num_hidden_layers)

    @property
    def context(self) -> int | None:
        """The most tokens that the model was made for, None where it does not say."""
        return getattr(self.network.config.get_text_config(), "max_position_embeddings", None)


def load_model(path: Path, *, dtype: str = "float32", device: str = "cpu") -> Model:
    """The causal language model in a local folder or GGUF file, ready to run on `device`.

    Raises ValueError in one line where the extra `capture` or the model is missing.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such model; give a folder with config.json or a GGUF file")
    _require_extra()
    _stay_offline()
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    source, options = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    # A folder may bring code of its own, and transformers would ask on the terminal.
    known = {"local_files_only": True, "trust_remote_code": False, **options}
    try:
        # Progress bars on standard error would mix with ours, and with logs.
        with redirect_stderr(StringIO()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **known)
            network = transformers.AutoModelForCausalLM.from_pretrained(
                source, dtype=DTYPES[dtype], use_safetensors=True, **known
            )
    except Exception as error:  # transformers raises many kinds for a folder that is no model
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: transformers can't load it: {reason}") from error
    name, license_ = _provenance(path)
    return Model(name, model_identity(path), license_, tokenizer, network.to(device).eval())


def require_device(name: str) -> None:
    """Raise ValueError unless a model can run on the device of that name here."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ValueError(f"unknown device {name!r}; expected cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not there; torch sees {torch.cuda.device_count()}")


def _require_extra() -> None:
    for module in ("accelerate", "gguf", "transformers"):
        if find_spec(module) is None:
            raise ValueError(
                f"{module} is not installed; capturing needs: pip install 'topokv[capture]'"
            )


def _stay_offline() -> None:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"


def model_identity(path: Path) -> dict[str, str]:
    """What tells a model's files from another's without reading them: name and bytes."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    return {"model_file": path.resolve().name, "model_bytes": str(size)}


def _provenance(path: Path) -> tuple[str, str]:
    """The model's name and licence, as its own files state them."""
    if path.is_file():
        gguf: Any = import_module("gguf")
        fields = gguf.GGUFReader(path).fields
        stated = [fields.get(f"general.{key}") for key in ("name", "license")]
        name, license_ = (None if entry is None else str(entry.contents()) for entry in stated)
        return name or path.stem, license_ or "unknown"
    return path.resolve().name, _card_license(path / "README.md")


def _card_license(card: Path) -> str:
    """The licence in a model card's front matter."""
    if not card.is_file():
        return "unknown"
    front = card.read_text(encoding="utf-8", errors="replace").partition("---")[2].partition("---")
    stated = [line for line in front[0].splitlines() if line.startswith("license:")]
    return stated[0].removeprefix("license:").strip() if stated else "unknown"
