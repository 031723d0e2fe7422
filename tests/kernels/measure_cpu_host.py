"""Prefill and decode time of dflash2_cpu against SGLang's torch_native, interleaved in one process.

    python tests/kernels/measure_cpu_host.py MODEL [--dtype bfloat16] [--contexts 16 256 1024]

Both backends run in turn on the same model, batch and slots, step by step, so that other load on
the machine meets both. Reported is the lower quartile of each and the median of the ratios. With
``--clock cpu`` (meaningful with OMP_NUM_THREADS=1) processor time is measured instead of wall time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median, quantiles

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from dflash_sglang import host
from dflash_sglang.host import bootstrap

bootstrap.install()

import torch  # noqa: E402
from sglang.benchmark import one_batch  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

BACKENDS = ("torch_native", host.ATTENTION_BACKEND)


def load_runner(model: str, dtype: str, max_tokens: int) -> one_batch._TorchBenchRunner:
    """A model runner outside of the server, with dflash2_cpu as its attention backend."""
    from sglang.srt.server_args import PortArgs, ServerArgs

    host.register()
    HookRegistry.apply_hooks()
    server_args = ServerArgs(
        model_path=model,
        device="cpu",
        dtype=dtype,
        attention_backend=host.ATTENTION_BACKEND,
        max_total_tokens=max_tokens,
        disable_cuda_graph=True,
        log_level="error",
    )
    server_args.resolve_once()
    ranks = one_batch.SpawnRanks(
        world_rank=one_batch.spawn_world_rank(server_args, tp_rank=0, pp_rank=0), gpu_id=0
    )
    one_batch.publish(server_args, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    return one_batch.load_model(server_args, PortArgs.init_new(server_args), 0, 0)[0]


class Bench:
    """Runs extend and decode with a chosen backend on one runner."""

    def __init__(self, runner: one_batch._TorchBenchRunner, clock: Callable[[], float]) -> None:
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

        self.bench = runner
        self.clock = clock
        self.runner = runner.torch_runner
        ours = self.runner.attn_backend
        self.backends = {
            host.ATTENTION_BACKEND: ours,
            "torch_native": TorchNativeAttnBackend(self.runner),
        }

    def use(self, name: str) -> None:
        from sglang.srt.model_executor import forward_context

        self.runner.attn_backend = self.backends[name]
        forward_context.set_forward_context(
            forward_context.ForwardContext(attn_backend=self.backends[name])
        )

    def prefill(self, name: str, length: int, bs: int = 1):
        self.bench.clear()
        vocab = self.runner.model_config.vocab_size
        prompts = torch.randint(3, vocab, (bs, length)).tolist()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(bs, length, prompts)
        self.use(name)
        start = self.clock()
        tokens, _, batch = self.bench.extend(requests)
        return self.clock() - start, tokens, batch

    def decode(self, name: str, tokens: torch.Tensor, batch) -> tuple[float, torch.Tensor]:
        self.use(name)
        start = self.clock()
        tokens, _ = self.bench.decode(tokens, batch)
        return self.clock() - start, tokens


def report(label: str, times: dict[str, list[float]]) -> None:
    ratio = median(
        n / o for n, o in zip(times["torch_native"], times[host.ATTENTION_BACKEND], strict=True)
    )
    quartiles = {name: quantiles(values, n=4)[0] * 1e3 for name, values in times.items()}
    columns = "  ".join(f"{name} {value:8.2f} ms" for name, value in quartiles.items())
    print(f"{label:28s} {columns}  ratio {ratio:5.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--contexts", type=int, nargs="+", default=[16, 256, 512, 1024])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    bench = Bench(load_runner(arguments.model, arguments.dtype, 12000), clock)

    for length in (128, 512):
        times: dict[str, list[float]] = {name: [] for name in BACKENDS}
        for round_number in range(11):
            for name in BACKENDS:
                elapsed = bench.prefill(name, length)[0]
                if round_number > 0:
                    times[name].append(elapsed)
        report(f"prefill {length}", times)
    for context in arguments.contexts:
        for bs in (1, 4):
            _, tokens, batch = bench.prefill(host.ATTENTION_BACKEND, context, bs)
            times = {name: [] for name in BACKENDS}
            for step in range(arguments.steps):
                for name in BACKENDS:
                    elapsed, tokens = bench.decode(name, tokens, batch)
                    if step > 2:
                        times[name].append(elapsed)
            report(f"decode bs {bs} context {context}", times)


if __name__ == "__main__":
    main()
