"""``dflash2`` as SGLang's scheduler sees it: predicates, server arguments, the worker."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from transformers import AutoTokenizer
from transformers.utils import cached_file

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.vocabulary import DRAFT_VOCABULARY, listed_beside, read_draft_vocabulary
from dflash_sglang.host import ATTENTION_BACKEND
from dflash_sglang.options import (
    DFlash2Options,
    OptionsError,
    resolve_options,
    tuning_from_environment,
)

if TYPE_CHECKING:
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

NAME = "DFLASH2"
_DEFAULT_MAX_RUNNING_REQUESTS = 48


@lru_cache(maxsize=4)
def read_drafter(path: str | None, revision: str | None, target: str) -> DFlash2Config:
    """The configuration of a drafter's checkpoint, by folder or by the name of a repository.

    Args:
        target: the target's checkpoint, whose tokenizer knows the mask token's id.

    Raises:
        OptionsError: no drafter was named, or none is there.
        ConfigError: the checkpoint's configuration cannot be honoured.
    """
    if path is None:
        raise OptionsError(
            "dflash2 needs a drafter: give its checkpoint with --speculative-draft-model-path "
            "(or --speculative-draft)."
        )

    def token_id(text: str) -> int | None:
        # Only a checkpoint that names its mask token by text pays for a tokenizer.
        return AutoTokenizer.from_pretrained(target).get_vocab().get(text)

    return DFlash2Config.from_pretrained(_checkpoint_folder(path, revision), token_id)


def _checkpoint_folder(path: str, revision: str | None) -> str:
    if os.path.isdir(path):
        return path
    try:
        config = cached_file(path, "config.json", revision=revision)
    except OSError as error:
        raise OptionsError(
            f"no drafter checkpoint at {path!r}: expected a folder or the name of a repository "
            "that can be downloaded."
        ) from error
    return os.path.dirname(config)


@lru_cache(maxsize=4)
def find_draft_vocabulary(
    path: str, revision: str | None, token_map: str | None, vocab_size: int
) -> tuple[int, ...] | None:
    """Ids of the tokens that drafts are made of; None for all.

    Args:
        path: the drafter's folder or repository, beside whose weights a list may lie.
        token_map: another list, from ``--speculative-token-map``.

    Raises:
        VocabularyError: the list cannot be used.
    """
    if token_map is not None:
        return read_draft_vocabulary(token_map, vocab_size)
    if os.path.isdir(path):
        return listed_beside(path, vocab_size)
    try:
        file = cached_file(path, DRAFT_VOCABULARY, revision=revision)
    except OSError:  # few repositories have one
        return None
    return read_draft_vocabulary(file, vocab_size)


def draft_vocabulary_of(server_args: ServerArgs) -> tuple[int, ...] | None:
    """The tokens that a server makes its drafts of; None for all."""
    return _draft_vocabulary_of(resolving_view(server_args))


def drafter_of(server_args: ServerArgs) -> DFlash2Config:
    """The drafter that a server was asked to use."""
    return _drafter_of(resolving_view(server_args))


def options_of(server_args: ServerArgs) -> DFlash2Options:
    """A server's speculation window; the same in every process that asks."""
    # Resolution leaves what was asked for in the fields, and a number of nodes that was left out is
    # not the same as the default.
    return options_from(resolving_view(server_args), server_args.speculative_num_draft_tokens)


def _drafter_of(cfg: Any) -> DFlash2Config:
    return read_drafter(
        cfg.speculative_draft_model_path, cfg.speculative_draft_model_revision, cfg.model_path
    )


def _draft_vocabulary_of(cfg: Any) -> tuple[int, ...] | None:
    token_map = cfg.speculative_token_map
    if not tuning_from_environment().draft_vocabulary:
        if token_map is not None:
            raise OptionsError(
                '--dflash2-config: "draft_vocabulary" false makes drafts of all tokens, but '
                f"--speculative-token-map names a list of some, {token_map}; give one of the two."
            )
        return None
    return find_draft_vocabulary(
        cfg.speculative_draft_model_path,
        cfg.speculative_draft_model_revision,
        token_map,
        _drafter_of(cfg).vocab_size,
    )


def options_from(cfg: Any, num_draft_tokens: int | None) -> DFlash2Options:
    """The speculation window that arguments of SGLang's ask for, resolved by SGLang or not.

    Args:
        cfg: has the fields of SGLang's server arguments.
        num_draft_tokens: as asked for.

    Raises:
        OptionsError, ConfigError, VocabularyError: what is asked for cannot be honoured.
    """
    drafter, tokens = _drafter_of(cfg), _draft_vocabulary_of(cfg)
    return resolve_options(
        drafter,
        device=cfg.device or "auto",
        num_steps=cfg.speculative_num_steps,
        num_draft_tokens=num_draft_tokens,
        topk=cfg.speculative_eagle_topk,
        draft_vocabulary=None if tokens is None else len(tokens),
        tuning=tuning_from_environment(),
    )


class DFlash2Algorithm(CustomSpecAlgo):
    """A member of SGLang's DFLASH family: it drafts blocks and taps the target's hidden states."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_mixed_chunk(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        # In SGLang's sense: draft branches do not allocate KV pages of their own, since drafter and
        # tree write the same window behind the prefix.
        return False

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(
        self,
        device: torch.device,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> FutureMap:
        """The relay of lengths and anchors between overlapping steps is SGLang's own."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def handle_server_args(self, server_args: Any) -> None:
        """Resolve the speculation window into SGLang's own arguments, or refuse.

        Args:
            server_args: SGLang's stand-in, which records what is assigned.
        """
        _refuse_unsupported(server_args)
        if server_args.speculative_num_steps == 0 or server_args.speculative_num_draft_tokens == 0:
            logger.info("dflash2: no draft tokens were asked for, so decoding is plain.")
            server_args.speculative_algorithm = None
            return
        options = options_from(server_args, server_args.speculative_num_draft_tokens)
        server_args.speculative_num_steps = options.max_depth
        server_args.speculative_num_draft_tokens = options.num_nodes
        server_args.speculative_eagle_topk = options.max_children
        if server_args.max_running_requests is None:
            server_args.max_running_requests = _DEFAULT_MAX_RUNNING_REQUESTS
        if server_args.sampling_backend is None:
            # The one whose draw is a function of seed and position.
            server_args.sampling_backend = "pytorch"
        if server_args.device == "cpu":
            _take_cpu_attention(server_args)

    def resolve_max_speculative_num_draft_tokens(self, server_args: ServerArgs) -> int:
        """Slots a step may write behind a prefix: the tree's, or the block's if wider."""
        return options_of(server_args).slots_per_step

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        """The drafter's captured graphs are a block wide, the target's a tree."""
        if not is_draft_worker:
            return num_draft_tokens
        from sglang.srt.runtime_context import get_server_args

        return options_of(get_server_args()).block_size


def _take_cpu_attention(cfg: Any) -> None:
    # The only backend on a CPU that verifies trees and lets a block attend to its cached context.
    # SGLang's default for the device, already resolved here, is one for AMX servers.
    if cfg.attention_backend == "intel_amx":
        cfg.attention_backend = None
    for field in ("attention_backend", "speculative_draft_attention_backend"):
        asked = getattr(cfg, field)
        if asked not in (None, ATTENTION_BACKEND):
            raise OptionsError(
                f"on a CPU dflash2 needs its own attention: expected --{field.replace('_', '-')} "
                f"{ATTENTION_BACKEND} (the default), got {asked}."
            )
        setattr(cfg, field, ATTENTION_BACKEND)


def _refuse_unsupported(cfg: Any) -> None:
    if cfg.pp_size != 1:
        raise OptionsError(
            f"dflash2 needs the whole target on each rank: expected --pp-size 1, got {cfg.pp_size}."
        )
    if cfg.enable_dp_attention:
        raise OptionsError("dflash2 does not support --enable-dp-attention yet.")
    if cfg.speculative_draft_window_size is not None:
        raise OptionsError(
            "dflash2 does not support --speculative-draft-window-size: a drafter's window is its "
            "checkpoint's."
        )
    if cfg.grammar_backend == "outlines":
        raise OptionsError(
            "dflash2 follows a grammar into every branch and back: expected --grammar-backend "
            "xgrammar or llguidance, got outlines, which cannot go back."
        )


def register() -> None:
    """Make ``--speculative-algorithm dflash2`` known to SGLang in this process."""

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DFlash2Algorithm)
    def worker_class(_server_args: ServerArgs) -> type:
        from dflash_sglang.engine.worker import DFlash2Worker

        return DFlash2Worker
