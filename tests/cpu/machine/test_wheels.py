"""The table of backends, where each wheel is looked for, and the check of what came."""

import http.server
import socket
import sys
import threading
from dataclasses import replace

import pytest

from topokv.machine import wheels
from topokv.machine.wheels import Build, Install

CPU, CUDA, ROCM = (wheels.backends()[name] for name in ("cpu", "cuda", "rocm"))
PYTORCH_ROCM = "https://download.pytorch.org/whl/rocm7.2"


def build(version, **runtimes):
    return Build(version, dict.fromkeys(wheels.RUNTIMES) | runtimes)


def test_table_has_one_torch_for_all_backends():
    assert list(wheels.backends()) == ["cpu", "cuda", "rocm"]
    assert len({backend.version for backend in wheels.backends().values()}) == 1


def test_every_backend_has_a_tests_folder_and_a_probe():
    from pathlib import Path

    from topokv.machine.device_probe import ASKED

    root = Path(__file__).parents[3]
    for backend in wheels.backends().values():
        assert (root / backend.tests).is_dir()
        assert backend.probe in ASKED


@pytest.mark.parametrize(
    ("tag", "version"), [("cpu", None), ("cu130", "13.0"), ("cu126", "12.6"), ("rocm7.2", "7.2")]
)
def test_tag_names_the_runtime_version(tag, version):
    assert replace(CUDA, tag=tag).runtime_version == version


def test_another_torch_keeps_the_tag_unless_it_names_one():
    assert CUDA.at(None) == CUDA
    assert (CUDA.at("2.12.0").version, CUDA.at("2.12.0").tag) == ("2.12.0", CUDA.tag)
    assert (CUDA.at("2.12.0+cu126").version, CUDA.at("2.12.0+cu126").tag) == ("2.12.0", "cu126")
    assert wheels.index_url(CUDA.at("2.12.0+cu126"), {}).endswith("/cu126")


@pytest.mark.parametrize("version", ["", "newest", "2", "2.13.0+", "2.13.0 --pre"])
def test_a_torch_version_that_is_none_is_refused(version):
    message = (
        "torch version must look like 2.13.0, or 2.13.0+cu126 to choose the build too, "
        f"got {version!r}"
    )
    with pytest.raises(ValueError) as raised:
        CUDA.at(version)
    assert str(raised.value) == message


def test_index_is_the_tables_unless_a_variable_replaces_it():
    assert wheels.index_url(ROCM, {}) == PYTORCH_ROCM
    assert wheels.index_url(ROCM, {"TOPOKV_INDEX_ROCM": "https://mirror/rocm"}) == (
        "https://mirror/rocm"
    )
    assert wheels.index_url(ROCM, {"TOPOKV_INDEX_ROCM": " "}) == ""


def test_pytorchs_index_is_asked_for_the_exact_tag_alone():
    tagged = Install(f"torch=={CUDA.wheel}", ("--index-url", wheels.index_url(CUDA, {})))
    assert wheels.installs(CUDA, wheels.index_url(CUDA, {})) == (tagged,)


@pytest.mark.parametrize(
    ("url", "options"), [("", ()), ("https://m/", ("--index-url", "https://m/"))]
)
def test_elsewhere_the_exact_tag_comes_before_the_untagged_wheel(url, options):
    assert wheels.installs(CUDA, url) == (
        Install(f"torch=={CUDA.wheel}", options),
        # Three equal signs: 2.13.0 itself, where two would take 2.13.0+cpu.
        Install(f"torch==={CUDA.version}", options),
    )


def test_an_untagged_wheel_is_never_a_rocm_build():
    assert wheels.installs(ROCM, "") == (Install(f"torch=={ROCM.wheel}"),)


def test_cpu_wheels_for_macos_carry_no_tag(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert CPU.wheel == CPU.version
    assert ROCM.wheel == f"{ROCM.version}+{ROCM.tag}"


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        (CPU, build(CPU.wheel)),
        (CPU, build(CPU.version)),
        (CUDA, build(CUDA.wheel, cuda="13.0")),
        (CUDA, build(CUDA.version, cuda="13.0")),
        (ROCM, build(ROCM.wheel, hip="7.2.53211")),
    ],
)
def test_the_right_build_passes(backend, found):
    assert wheels.wrong_build(backend, found) is None


@pytest.mark.parametrize(
    ("backend", "found", "kind"),
    [
        (CUDA, build("2.13.0+cpu"), "cpu"),
        (ROCM, build("2.13.0+cu130", cuda="13.0"), "cuda"),
        (ROCM, build("2.13.0"), "cpu"),
        (CPU, build("2.13.0", cuda="13.0"), "cuda"),
        (CPU, build("2.13.0+xpu", xpu="20250302"), "xpu"),
        (CUDA, build("2.13.0+rocm7.2", hip="7.2.53211"), "rocm"),
        (CUDA, build("2.13.0+cu126", cuda="12.6"), "cuda"),
        (ROCM, build("2.13.0+rocm7.1", hip="7.1.25424"), "rocm"),
        (CUDA, build("2.12.0+cu130", cuda="13.0"), "cuda"),
    ],
)
def test_a_wrong_build_is_named_beside_the_right_one(backend, found, kind):
    assert wheels.wrong_build(backend, found) == (
        f"this is torch {found.version}, a {kind} build, where the {backend.name} session needs "
        f"{backend.wheel}; set TOPOKV_INDEX_{backend.name.upper()} to an index that has it, "
        "or choose another build: -- --torch-version VERSION+TAG"
    )


def test_a_torch_that_somebody_else_installed_may_be_of_any_version():
    assert wheels.wrong_build(CUDA, build("2.9.0a0", cuda="12.9"), exact=False) is None
    assert wheels.wrong_build(CUDA, build("2.9.0"), exact=False) is not None


def test_a_wheel_that_was_not_found_is_told_with_what_to_set():
    remedy = (
        "set TOPOKV_INDEX_ROCM to an index that has it, "
        "or choose another build: -- --torch-version VERSION+TAG"
    )
    error = f"No matching distribution found for torch=={ROCM.wheel}"
    assert wheels.not_installed(ROCM, PYTORCH_ROCM, True, error) == (
        f"{PYTORCH_ROCM} has no torch {ROCM.wheel} ({error}); {remedy}"
    )
    assert wheels.not_installed(ROCM, PYTORCH_ROCM, False, error) == (
        f"{PYTORCH_ROCM} does not answer and pip's own configuration has no torch "
        f"{ROCM.wheel} ({error}); {remedy}"
    )
    assert wheels.not_installed(ROCM, "", True, "") == (
        f"pip's own configuration has no torch {ROCM.wheel} (pip failed); {remedy}"
    )


def test_the_last_error_is_the_one_that_says_something(tmp_path):
    log = tmp_path / "pip.log"
    assert wheels.last_error(log) == ""
    log.write_text(
        "2026-01-01T00:00:00,000 Looking in links\n"
        "2026-01-01T00:00:01,000 ERROR: Cannot install torch, conflicting dependencies.\n"
        "2026-01-01T00:00:01,001 ERROR: ResolutionImpossible: for help visit a page\n"
        "2026-01-01T00:00:01,002 Removed build tracker\n",
        encoding="utf-8",
    )
    assert wheels.last_error(log) == "Cannot install torch, conflicting dependencies"


@pytest.fixture
def index():
    """A local index whose answer to a request is the status in its path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path.split("/")[1]))
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "answers"), [(200, True), (401, True), (403, False), (404, False), (503, False)]
)
def test_an_index_answers_if_pip_could_use_it(index, status, answers):
    assert wheels.index_answers(f"{index}/{status}/") is answers


def test_an_index_with_a_password_is_asked_without_it(index):
    assert wheels.index_answers(index.replace("//", "//user:secret@") + "/401")


def test_an_index_that_hangs_or_refuses_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not wheels.index_answers(f"http://127.0.0.1:{port}", timeout=0.1)
    assert not wheels.index_answers(f"http://127.0.0.1:{port}", timeout=5)


def test_a_folder_is_pips_to_judge(tmp_path):
    assert wheels.index_answers(tmp_path.as_uri())


def test_the_installed_build_is_this_torch():
    import torch

    found = wheels.installed_build()
    assert found.version == torch.__version__
    assert found.runtimes["cuda"] == torch.version.cuda
