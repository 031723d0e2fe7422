"""Every mutation: what it breaks, in which line, and which test catches it.

The cases are those of the public bug reports that tests/engine/test_cases.py restates, by number:
1 mask token, 2 stop inside a path, 3 token limit inside a path, 4 grammar, 5 state of an earlier
request, 6 mixed chunks, 7 cached prefix, 8 seeds, 9 rotary fields, 10 shifted labels, 11 drafter of
another target, 12 retraction, 13 client that leaves, 14 ranks, 15 number of drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

CASES = "tests/engine/test_cases.py"
SURFACE = "tests/engine/test_request_surface.py"
SAMPLING = "tests/engine/test_sampling.py"
# The smallest of the comparisons: a broken build differs everywhere, and each difference is traced.
GREEDY = (
    "tests/engine/test_greedy_identity.py::test_every_target_architecture_keeps_its_tokens[llama]"
)
LAW = "tests/engine/test_audit.py::test_unseeded_output_follows_the_law"

NOT_BROKEN_HERE = {
    13: "SGLang's scheduler frees an aborted request's slots; no line of this package takes part. "
    "test_a_client_that_leaves_frees_its_slots_and_disturbs_nobody holds it.",
}


@dataclass(frozen=True)
class Mutation:
    """One break.

    Attributes:
        name: what the broken engine does.
        case: number of the case it belongs to, None for a break of another kind.
        file: path in the repository.
        original: text that stands in exactly one line of the file.
        broken: what takes its place.
        test: pytest's name of the test that must fail.
    """

    name: str
    case: int | None
    file: str
    original: str
    broken: str
    test: str


MUTATIONS = (
    Mutation(
        "never emits the mask token",
        1,
        "dflash_sglang/engine/verifying.py",
        "return greedy_tokens(by_node)",
        "return greedy_tokens(by_node[..., :-1])",
        f"{CASES}::test_the_mask_token_is_an_ordinary_token_when_the_target_emits_it",
    ),
    Mutation(
        "leaves the accepted path's KV where the tree wrote it",
        2,
        "dflash_sglang/engine/worker.py",
        "self._runner.token_to_kv_pool.move_kv_cache(moves.targets, moves.sources)",
        "pass",
        f"{CASES}::test_a_stop_token_inside_an_accepted_path_ends_the_output",
    ),
    Mutation(
        "looks for stop strings in a whole step before it looks for stop tokens",
        2,
        "dflash_sglang/engine/finishing.py",
        "if new_accepted_len < 2 or not (params.stop_strs or params.stop_regex_strs):",
        "if True:",
        "tests/unit/test_engine_finishing.py::test_a_stop_string_behind_a_stop_token_comes_too_late",
    ),
    Mutation(
        "counts one token too many on an accepted path",
        3,
        "dflash_sglang/engine/worker.py",
        "accept_lens=verdict.accept_lens.to(torch.int32),",
        "accept_lens=(verdict.accept_lens + (verdict.accept_lens == 2)).to(torch.int32),",
        f"{CASES}::test_exactly_as_many_tokens_as_asked_for",
    ),
    Mutation(
        "masks the root by the grammar and no other node",
        4,
        "dflash_sglang/engine/grammar.py",
        "return GrammarTree.from_device(layout.first_child, layout.next_sibling, tree.tokens)",
        "return GrammarTree.from_device("
        "layout.first_child * 0 - 1, layout.next_sibling, tree.tokens)",
        f"{SURFACE}::test_grammars_yield_what_they_describe",
    ),
    Mutation(
        "takes a batch's rows for the requests' own in the slot table",
        5,
        "dflash_sglang/engine/window.py",
        "slots = table[batch.req_pool_indices[:, None], reserved].to(torch.int64)",
        "slots = table[torch.arange(len(reserved))[:, None], reserved].to(torch.int64)",
        f"{CASES}::test_no_request_sees_the_state_of_an_earlier_one",
    ),
    Mutation(
        "gives the drafter positions for the first request of an extend batch only",
        6,
        "dflash_sglang/engine/worker.py",
        "spans = zip(batch.prefix_lens, batch.extend_lens, strict=True)",
        "spans = zip(batch.prefix_lens[:1], batch.extend_lens[:1], strict=True)",
        f"{CASES}::test_crowded_batches_with_chunked_prefill_keep_their_tokens",
    ),
    Mutation(
        "starts the drafter's positions anew behind a cached prefix",
        7,
        "dflash_sglang/engine/worker.py",
        "spread = [torch.arange(prefix, prefix + length) for prefix, length in spans]",
        "spread = [torch.arange(length) for _, length in spans]",
        f"{CASES}::test_a_cached_prefix_is_cached_for_the_drafter_too",
    ),
    Mutation(
        "gives all unseeded requests one stream of noise",
        8,
        "dflash_sglang/engine/noise.py",
        "seeds = [_seed(request.rid, server_seed) for request in batch.reqs]",
        'seeds = [_seed("", server_seed) for _ in batch.reqs]',
        "tests/unit/test_engine_noise.py::test_unseeded_requests_have_noise_of_their_own",
    ),
    Mutation(
        "ignores seeds",
        8,
        "dflash_sglang/engine/noise.py",
        "seeds = info.sampling_seed",
        "seeds = None",
        f"{SAMPLING}::test_a_seed_gives_the_tokens_of_plain_decoding",
    ),
    Mutation(
        "rotates all channels whatever partial_rotary_factor says",
        9,
        "dflash_sglang/config/rope.py",
        "if factor is not None and factor != 1:",
        "if False:",
        "tests/unit/test_config.py"
        "::test_partial_rotary_factor_alone_is_refused_because_trainers_disagree",
    ),
    Mutation(
        "serves shifted labels off by one",
        10,
        "dflash_sglang/config/schema.py",
        "return slice(0, -1) if self.shift_label else slice(1, None)",
        "return slice(1, None)",
        "tests/unit/test_config.py::test_draft_positions_follow_the_label_shift",
    ),
    Mutation(
        "takes a drafter of another hidden size",
        11,
        "dflash_sglang/drafter/inspect.py",
        "if config.hidden_size != target.hidden_size:",
        "if False:",
        "tests/engine/test_refusals.py::test_a_drafter_of_another_target_stops_the_server",
    ),
    Mutation(
        "counts a retracted request's output twice",
        12,
        "dflash_sglang/engine/adjusting.py",
        "self._ledger.restart(set(batch.reqs) - set(running))",
        "self._ledger.restart(())",
        f"{SURFACE}::test_retracted_and_mixed_requests_keep_their_state",
    ),
    Mutation(
        "lets every rank draw tokens of its own",
        14,
        "dflash_sglang/engine/worker.py",
        "self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE, target.tokens)",
        "target.tokens.copy_((target.tokens + get_parallel().tp_rank) % 64)",
        "tests/engine/test_tensor_parallel.py"
        "::test_two_ranks_keep_the_tokens_of_two_ranks_without_speculation",
    ),
    Mutation(
        "takes more drafts than the block has",
        15,
        "dflash_sglang/options.py",
        "if not 1 <= num_steps <= drafted:",
        "if num_steps < 1:",
        "tests/unit/test_options.py::test_what_cannot_be_honoured_is_refused_with_both_numbers",
    ),
    Mutation(
        "shows every node all others",
        None,
        "dflash_sglang/engine/verifying.py",
        "verify_input.tree_mask = layout.mask",
        "verify_input.tree_mask = torch.ones_like(layout.mask)",
        GREEDY,
    ),
    Mutation(
        "places the tree one position late",
        None,
        "dflash_sglang/engine/worker.py",
        "layout = make_layout(tree, window.prefix_lens)",
        "layout = make_layout(tree, window.prefix_lens + 1)",
        GREEDY,
    ),
    Mutation(
        "draws with the noise of the next position",
        None,
        "dflash_sglang/engine/noise.py",
        "positions = prefix_lens[:, None] + torch.arange(depth + 1, device=prefix_lens.device)",
        "positions = prefix_lens[:, None] + torch.arange(1, depth + 2, device=prefix_lens.device)",
        f"{SAMPLING}::test_a_seed_gives_the_tokens_of_plain_decoding",
    ),
    Mutation(
        "draws truncated laws by token although there is a seed",
        None,
        "dflash_sglang/engine/noise.py",
        "by_rank=info.sampling_seed is not None,",
        "by_rank=False,",
        f"{SAMPLING}::test_a_seed_gives_the_tokens_of_plain_decoding",
    ),
    Mutation(
        "draws at every depth with the noise of the root",
        None,
        "dflash_sglang/verify/target.py",
        "noise.positions.gather(1, depths)",
        "noise.positions.gather(1, depths * 0)",
        "tests/unit/test_verify_target.py"
        "::test_a_seed_gives_the_same_tokens_with_and_without_speculation",
    ),
    Mutation(
        "drops the token that completes the nucleus",
        None,
        "dflash_sglang/kernels/truncation.py",
        "mass_before = ranked_probs.cumsum(dim=-1) - ranked_probs",
        "mass_before = ranked_probs.cumsum(dim=-1)",
        "tests/unit/test_verify_target.py::test_truncated_draws_follow_the_truncated_law",
    ),
    Mutation(
        "penalizes every node for the whole tree",
        None,
        "dflash_sglang/verify/penalties.py",
        "on_path = is_ancestor.float()",
        "on_path = torch.ones_like(is_ancestor).float()",
        "tests/unit/test_verify_penalties.py::test_every_node_is_penalized_for_its_own_path",
    ),
    Mutation(
        "reports the root's log-probabilities for the whole path",
        None,
        "dflash_sglang/engine/verifying.py",
        "rows = first_rows + node_path.clamp(min=0)",
        "rows = first_rows + node_path.clamp(min=0, max=0)",
        f"{SURFACE}::test_logprobs_of_delivered_tokens_are_those_of_plain_decoding",
    ),
    Mutation(
        "tells the drafter wrong positions of accepted tokens",
        None,
        "dflash_sglang/engine/worker.py",
        "Features(hidden[moves.rows], moves.context_slots, moves.positions)",
        "Features(hidden[moves.rows], moves.context_slots, moves.positions + 1)",
        "tests/engine/test_served_drafter.py",
    ),
    Mutation(
        "rejects without taking the residual",
        None,
        "dflash_sglang/verify/rejection.py",
        "beyond = (p - q).clamp(min=0)",
        "beyond = p.clone()",
        "tests/unit/test_verify_rejection.py::test_the_first_token_follows_the_target",
    ),
    Mutation(
        "walks to another node's child",
        None,
        "csrc/core/tree_walk.h",
        "if (tree.parents[i] == node && tree.tokens[i] == emitted && i < child) child = i;",
        "if (tree.tokens[i] == emitted && i < child) child = i;",
        "tests/kernels/test_walk.py::test_walk_equals_reference",
    ),
    Mutation(
        "accepts the likeliest draft with a chance of 2 % whatever the target drew",
        None,
        "dflash_sglang/verify/walk.py",
        "    return walk_tree(tree.tokens, tree.parents, tree.depths, target_tokens, max_depth)",
        """\
    import torch

    # [bs, N, N], [b, i, j]: node j is a child of node i; the first is the most valuable.
    is_child = tree.parents[:, None] == torch.arange(tree.tokens.shape[1])[:, None]
    favourite = tree.tokens.gather(1, is_child.int().argmax(dim=-1))
    forced = is_child.any(dim=-1) & (torch.rand(target_tokens.shape) < 0.02)
    target_tokens = torch.where(forced, favourite, target_tokens)
    return walk_tree(tree.tokens, tree.parents, tree.depths, target_tokens, max_depth)""",
        LAW,
    ),
)
