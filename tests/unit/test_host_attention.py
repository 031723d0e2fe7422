"""The CPU attention backend describes every kind of SGLang batch to its one kernel."""

import os

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from dflash_sglang.host import bootstrap

bootstrap.install()

from types import SimpleNamespace  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

from dflash_sglang.host.attention import CPUAttentionBackend, plan_batch  # noqa: E402
from dflash_sglang.kernels.attention import MaskMode, _visible  # noqa: E402

HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 16, 64


class Pool:
    """A key/value cache of one layer."""

    def __init__(self) -> None:
        self.keys = torch.zeros(SLOTS, KV_HEADS, DIM)
        self.values = torch.zeros(SLOTS, KV_HEADS, DIM)

    def set_kv_buffer(self, layer, loc, k, v) -> None:
        self.keys[loc.loc], self.values[loc.loc] = k, v

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values


def _table() -> torch.Tensor:
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(0))
    return order[:60].view(3, 20).int()


def _backend(latent: bool = False) -> CPUAttentionBackend:
    return CPUAttentionBackend(
        SimpleNamespace(
            model_config=SimpleNamespace(is_encoder_decoder=False, model_path="some/model"),
            use_mla_backend=latent,
            token_to_kv_pool=Pool(),
            req_to_token_pool=SimpleNamespace(req_to_token=_table()),
        )
    )


def _layer(attn_type: AttentionType = AttentionType.DECODER, window: int = -1) -> SimpleNamespace:
    return SimpleNamespace(
        layer_id=0,
        tp_q_head_num=HEADS,
        qk_head_dim=DIM,
        v_head_dim=DIM,
        scaling=0.25,
        sliding_window_size=window,
        logit_cap=0.0,
        attn_type=attn_type,
    )


def _batch(mode: ForwardMode, rows: list[int], seq_lens: list[int], loc, **fields):
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        out_cache_loc=loc,
        **fields,
    )


def _normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_decode_gives_the_bits_of_prefill_at_the_same_position():
    length = 13
    q, k, v = (_normal(i, length, n, DIM) for i, n in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    backend, layer, slots = _backend(), _layer(), _table()[1, :length].long()
    extend = _batch(
        ForwardMode.EXTEND, [1], [length], slots, extend_seq_lens=torch.tensor([length]).int()
    )
    backend.init_forward_metadata(extend)
    whole = backend.forward(q.flatten(1), k, v, layer, extend)

    backend = _backend()
    for position in range(length):
        step = _batch(ForwardMode.DECODE, [1], [position + 1], slots[position : position + 1])
        backend.init_forward_metadata(step)
        token = slice(position, position + 1)
        out = backend.forward(q[token].flatten(1), k[token], v[token], layer, step)
        assert torch.equal(out, whole[token]), f"position {position}"


def test_mixed_lengths_are_planned_request_after_request():
    batch = _batch(
        ForwardMode.MIXED, [2, 0], [9, 7], None, extend_seq_lens=torch.tensor([4, 1]).int()
    )
    plan = plan_batch(batch, _table())
    assert plan.table_rows.tolist() == [2, 0]
    assert plan.q_starts.tolist() == [0, 4, 5]
    assert plan.kv_lens.tolist() == [9, 7]
    assert plan.block_mask is None


def test_both_mask_layouts_mean_the_same():
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    other = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    prefixes = [4, 2]
    flat = torch.cat(
        [
            torch.cat([torch.ones(3, prefix, dtype=torch.bool), mask], 1).flatten()
            for prefix, mask in zip(prefixes, (tree, other), strict=True)
        ]
    )
    outputs = []
    for mask in ({"tree_mask": torch.stack([tree, other])}, {"custom_mask": flat}):
        backend = _backend()
        backend.token_to_kv_pool.keys = _normal(7, SLOTS, KV_HEADS, DIM)
        backend.token_to_kv_pool.values = _normal(8, SLOTS, KV_HEADS, DIM)
        spec_info = SimpleNamespace(draft_token_num=3, **{"custom_mask": None} | mask)
        batch = _batch(ForwardMode.TARGET_VERIFY, [0, 2], prefixes, None, spec_info=spec_info)
        backend.init_forward_metadata(batch)
        outputs.append(
            backend.forward(_normal(9, 6, HEADS * DIM), None, None, _layer(), batch, False)
        )
    assert torch.equal(*outputs)


@pytest.mark.parametrize("window", [-1, 3])
def test_a_drafters_block_is_seen_from_both_sides(window):
    backend = _backend()
    backend.token_to_kv_pool.keys = _normal(7, SLOTS, KV_HEADS, DIM)
    backend.token_to_kv_pool.values = _normal(8, SLOTS, KV_HEADS, DIM)
    spec_info = SimpleNamespace(draft_token_num=5, custom_mask=None)
    batch = _batch(ForwardMode.TARGET_VERIFY, [1], [6], None, spec_info=spec_info)
    backend.init_forward_metadata(batch)
    q = _normal(9, 5, HEADS, DIM)
    layer = _layer(AttentionType.ENCODER_ONLY, window)
    actual = backend.forward(q.flatten(1), None, None, layer, batch, False)

    slots = _table()[1, :11].long()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1),
        backend.token_to_kv_pool.keys[slots].transpose(0, 1),
        backend.token_to_kv_pool.values[slots].transpose(0, 1),
        attn_mask=_visible(MaskMode.BIDIRECTIONAL, 5, 11, None, window),
        scale=0.25,
        enable_gqa=True,
    )
    torch.testing.assert_close(actual, expected.transpose(0, 1).flatten(1))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"tree_mask": torch.ones(1, 2, 2, dtype=torch.bool)}, r"must be \[1, 3, 3\]"),
        ({"custom_mask": torch.ones(5, dtype=torch.bool)}, "21 elements, got 5"),
    ],
)
def test_masks_of_another_shape_are_refused(mask, message):
    spec_info = SimpleNamespace(draft_token_num=3, **{"custom_mask": None} | mask)
    batch = _batch(ForwardMode.TARGET_VERIFY, [0], [4], None, spec_info=spec_info)
    with pytest.raises(ValueError, match=message):
        plan_batch(batch, _table())


def test_a_model_with_latent_attention_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no latent attention \(MLA\).*got some/model"):
        _backend(latent=True)
