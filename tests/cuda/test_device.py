"""The checks of every device on a CUDA one, and what is CUDA's own."""

import pytest
import torch
from device_checks import PATHS, GpuChecks, workload

from topokv.attention import prepare_dense
from topokv.scheduling import Scheduler
from topokv.timing import attention_backend


class TestCuda(GpuChecks):
    @pytest.fixture
    def device(self):
        return torch.device("cuda", 0)

    @pytest.mark.parametrize("kv_len", [1000, 16384])
    def test_half_precision_does_not_fall_back_to_math(self, device, kv_len):
        w = workload(device, torch.float16, kv_len=kv_len)
        assert attention_backend(prepare_dense(w.q, w.cache)) != "math"

    def test_replayed_graph_attends_what_the_tensors_hold_now(self, device):
        w = workload(device, torch.float16)
        schedule = Scheduler(w.cache.k, 300, selector="witness").schedule(w.q)
        calls = [path.prepare(w.q, w.cache, schedule) for path in PATHS]
        for call in (prepare_dense(w.q, w.cache), *calls):
            replay, output = captured(call)
            w.q.normal_(generator=torch.Generator(device).manual_seed(1))
            replay()
            torch.testing.assert_close(output, call())


def captured(call):
    """A graph of the call, to be replayed, and the tensor that it writes to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # libraries set themselves up on the first call, which a graph can't hold
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph.replay, output
