"""How hard the property tests try: `--hypothesis-profile=fuzz` for 20 times the cases."""

import os
import time

import pytest
import torch
from hypothesis import settings

# Derandomised: the suite's verdict on a commit does not change from one run to the next.
settings.register_profile("suite", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("suite")

STARTED = time.monotonic()


@pytest.fixture(autouse=True)
def time_cap():
    """Skip what begins after TOPOKV_FUZZ_SECONDS, where that is set."""
    cap = float(os.environ.get("TOPOKV_FUZZ_SECONDS", "inf"))
    if time.monotonic() - STARTED > cap:
        pytest.skip(f"the time cap of {cap:g} s is reached")


@pytest.fixture(scope="module")
def one_thread():
    """On tensors as small as these, threads that wait for one another take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
