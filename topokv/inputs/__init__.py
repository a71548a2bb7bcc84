"""What is measured on: random tensors, and captures of what a real model's attention reads.

Captures are made by running a model over a text; both come from files, never from a hub.
"""

from topokv.inputs.capture_file import (
    SAMPLE,
    Capture,
    CapturedLayer,
    load_capture,
    read_header,
    save_capture,
)
from topokv.inputs.capture_folder import CaptureFolder
from topokv.inputs.capturing import Wish, capture_text
from topokv.inputs.model import Model, load_model, require_device
from topokv.inputs.texts import STANDARD_TEXTS, Text, file_text, standard_text
from topokv.inputs.workload import Query, Workload, captured, gaussian

__all__ = [
    "SAMPLE",
    "STANDARD_TEXTS",
    "Capture",
    "CaptureFolder",
    "CapturedLayer",
    "Model",
    "Query",
    "Text",
    "Wish",
    "Workload",
    "capture_text",
    "captured",
    "file_text",
    "gaussian",
    "load_capture",
    "load_model",
    "read_header",
    "require_device",
    "save_capture",
    "standard_text",
]
