"""The SGLang names that this package relies on, in one table, checked before anything registers.

SGLang has no stable interface for speculative workers. A release that renames one of these would
otherwise fail in the middle of a request; here it is found at start, by name, and SGLang goes on
without us.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import version
from typing import NamedTuple

TESTED_VERSION = "0.5.23"


class Reliance(NamedTuple):
    """One name of SGLang's and, for a callable, the parameters that we pass by name."""

    name: str
    parameters: tuple[str, ...] = ()


_SPEC = "sglang.srt.speculative"
_EXECUTOR = "sglang.srt.model_executor"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info"

RELIANCES: tuple[Reliance, ...] = (
    Reliance(
        f"{_SPEC}.spec_info.SpeculativeAlgorithm.register", ("supports_overlap", "spec_class")
    ),
    Reliance(f"{_SPEC}.spec_info.SpeculativeAlgorithm.from_string"),
    Reliance(f"{_SPEC}.spec_registry.CustomSpecAlgo"),
    Reliance(f"{_SPEC}.base_spec_worker.BaseSpecWorker"),
    Reliance(
        f"{_SPEC}.draft_worker_common.build_draft_tp_worker",
        ("server_args", "gpu_id", "nccl_port", "target_model_config", "algo_label"),
    ),
    Reliance(f"{_SPEC}.draft_worker_common.make_draft_input_v2", ("bonus_tokens", "new_seq_lens")),
    Reliance(
        f"{_SPEC}.dflash_info.DFlashVerifyInput.prepare_for_verify", ("batch", "target_worker")
    ),
    Reliance(f"{_SPEC}.dflash_info_v2.DFlashDraftInputV2.prepare_for_decode", ("batch",)),
    Reliance(f"{_SPEC}.dflash_utils.resolve_dflash_verify_mask_policy", ("attn_backend",)),
    Reliance(f"{_SPEC}.spec_utils.GrammarTree.from_device"),
    Reliance(f"{_SPEC}.spec_utils.build_grammar_vocab_mask", ("reqs", "tree", "barrier")),
    Reliance(f"{_SPEC}.spec_tp_sync.SpecTpSync.sync", ("site", "values")),
    Reliance(f"{_EXECUTOR}.forward_batch_info.ForwardBatch"),
    Reliance(f"{_EXECUTOR}.forward_batch_info.CaptureHiddenMode.FULL"),
    Reliance(
        f"{_EXECUTOR}.model_runner_components.attention_backend_setup"
        ".configure_aux_hidden_state_capture",
        ("model", "dflash_use_aux_hidden_state", "dflash_target_layer_ids"),
    ),
    Reliance(
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        ("request", "raw_request"),
    ),
    Reliance("sglang.srt.managers.overlap_utils.FutureMap"),
    Reliance(
        "sglang.srt.managers.scheduler.GenerationBatchResult",
        ("num_non_draft_tokens_per_req", "speculative_output_stride"),
    ),
    Reliance(
        "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
        ".update_spec_metrics",
        ("bs", "num_correct_drafts", "num_accept_tokens"),
    ),
    Reliance(
        "sglang.srt.managers.scheduler_components.batch_result_processor"
        ".SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        ("result", "batch"),
    ),
    Reliance("sglang.srt.managers.schedule_batch.Req.update_spec_correct_drafts_histogram"),
    Reliance(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation", ("is_verify",)
    ),
    Reliance("sglang.srt.managers.scheduler.validate_dflash_request", ("req", "enable_overlap")),
    Reliance(
        "sglang.srt.layers.radix_attention.RadixAttention", ("attn_type", "sliding_window_size")
    ),
    Reliance("sglang.srt.layers.logits_processor.LogitsProcessorOutput"),
    Reliance(
        "sglang.srt.layers.vocab_parallel_embedding.VocabParallelEmbedding._embed_local_shard"
    ),
    Reliance("sglang.srt.layers.logprob_processor.compute_spec_logprobs", ("chain_stride",)),
    Reliance("sglang.srt.layers.sampler.Sampler.forward", ("sampling_info", "positions")),
    Reliance(
        "sglang.srt.layers.sampler.apply_custom_logit_processor", ("logits", "sampling_batch_info")
    ),
    Reliance(f"{_SAMPLING}.ProcessorEntry", ("processor", "rows", "indices")),
    Reliance(f"{_SAMPLING}.SamplingBatchInfo.acc_additive_penalties"),
    Reliance(f"{_SAMPLING}.SamplingBatchInfo.acc_scaling_penalties"),
    Reliance("sglang.srt.managers.schedule_batch.Req.update_finish_state", ("new_accepted_len",)),
    Reliance("sglang.srt.managers.schedule_batch.ScheduleBatch.decoding_reqs"),
    Reliance("sglang.srt.mem_cache.kv_index_translator.KVIndexTranslator.plan", ("write_virtual",)),
    Reliance("sglang.srt.mem_cache.memory_pool.KVWriteLoc", ("loc", "physical")),
    Reliance("sglang.srt.plugins.hook_registry.HookRegistry.register", ("target", "hook_type")),
    Reliance("sglang.srt.runtime_context.get_observability"),
    Reliance("sglang.srt.server_args.ServerArgs.add_cli_args", ("parser",)),
    Reliance("sglang.srt.server_args.ServerArgs.from_cli_args"),
)


class Mismatch(NamedTuple):
    """A name that this SGLang does not have as we need it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def sglang_version() -> str:
    """Version of the installed SGLang."""
    return version("sglang")


def find_mismatches(reliances: tuple[Reliance, ...] = RELIANCES) -> list[Mismatch]:
    """Every relied-on name that is missing, or lacks a parameter we pass by name."""
    return [found for entry in reliances if (found := _mismatch(entry)) is not None]


def _mismatch(entry: Reliance) -> Mismatch | None:
    try:
        value = pkgutil.resolve_name(entry.name)
    except (ImportError, AttributeError) as error:
        return Mismatch(entry.name, str(error))
    if not entry.parameters:
        return None
    accepted = inspect.signature(value).parameters
    missing = [name for name in entry.parameters if name not in accepted]
    if missing:
        return Mismatch(entry.name, f"has no parameter {', '.join(missing)}")
    return None


def describe_mismatches(mismatches: list[Mismatch]) -> str:
    """One sentence for the log."""
    listed = "; ".join(map(str, mismatches))
    return (
        f"dflash2 is not registered: it was written for SGLang {TESTED_VERSION}, and SGLang "
        f"{sglang_version()} differs in {listed}. SGLang itself goes on as usual."
    )
