"""A server that chooses its width: the same tokens, and the limits that requests set."""

import httpx
import pytest
from openai import BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from dflash_sglang.engine.step_clock import PHASES
from tests.engine.checkpoints import VOCAB
from tests.engine.servers import SEEDED, speculative_server
from tests.engine.test_greedy_identity import TIE
from tests.engine.traffic import differences, generate, generate_all, make_prompts

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def adaptive(tiny_qwen3, tiny_drafter):
    server = speculative_server(
        tiny_qwen3,
        tiny_drafter,
        *("--speculative-eagle-topk", "12", "--dflash2-config", '{"adaptive": true}'),
        "--enable-metrics",
        *SEEDED,
    )
    with server:
        yield server


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(16, VOCAB - 1, longest=300)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_greedy_tokens_equal_those_of_plain_decoding(adaptive, seeded, prompts, concurrency):
    expected = generate_all(seeded.plain, prompts, 64, concurrency=4)
    got = generate_all(adaptive, prompts, 64, concurrency)
    parted = differences(seeded.plain, prompts, expected, got)
    assert [found for found in parted if abs(found.gap) >= TIE] == []


@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 12}])
def test_seeded_tokens_equal_those_of_plain_decoding(adaptive, seeded, prompts, sampling):
    asked = {"sampling_seed": 77, **sampling}
    expected = generate_all(seeded.plain, prompts, 48, concurrency=1, **asked)
    got = generate_all(adaptive, prompts, 48, concurrency=6, **asked)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]


def test_steps_differ_in_what_they_verify_and_the_metrics_say_so(adaptive, prompts):
    """Otherwise the tests above would compare one width."""
    generate_all(adaptive, prompts, 64, concurrency=4)
    page = httpx.get(f"{adaptive.url}/metrics").text
    families = {family.name: family.samples for family in text_string_to_metric_families(page)}
    steps = {
        sample.labels["nodes"]: sample.value
        for sample in families["dflash2_steps"]
        if sample.name.endswith("_total") and sample.value
    }
    assert len(steps) >= 4
    took = {
        sample.labels["phase"]: sample.value
        for sample in families["dflash2_phase_milliseconds"]
        if sample.name.endswith("_total")
    }
    assert set(took) == set(PHASES) and all(value > 0 for value in took.values())
    (tokens,) = [s.value for s in families["dflash2_tokens"] if s.name.endswith("_total")]
    assert sum(steps.values()) < tokens <= 16 * 64


@pytest.mark.parametrize("server", ["adaptive", "fixed"])
def test_a_request_can_decode_plainly_or_in_small_steps(adaptive, seeded, prompts, server):
    served = adaptive if server == "adaptive" else seeded.tree
    free = generate(served, prompts[3], 64)
    for limits, most in (({"speculate": False}, 1), ({"max_depth": 1}, 2), ({"nodes": 3}, 3)):
        bound = generate(served, prompts[3], 64, custom_params={"dflash2": limits})
        assert bound.token_ids == free.token_ids
        assert bound.meta["spec_verify_ct"] >= 63 / most
    if server == "fixed":  # what pays for a random drafter may be plain decoding
        assert free.meta["spec_verify_ct"] < 63


def test_plain_steps_in_a_row_end_where_one_at_a_time_would(adaptive, seeded, prompts):
    plain = {"custom_params": {"dflash2": {"speculate": False}}}
    text = generate(seeded.plain, prompts[3], 48).token_ids
    for length in (2, 9, 10, 48):
        got = generate(adaptive, prompts[3], length, **plain)
        assert got.token_ids == text[:length]
        assert got.meta["spec_verify_ct"] == length - 1
    ends = [token for at, token in enumerate(text) if at >= 3 and token not in text[:at]]
    assert len(ends) >= 3
    for end in ends[:5]:
        asked = {"ignore_eos": False, "stop_token_ids": [end]}
        expected = generate(seeded.plain, prompts[3], 48, **asked)
        got = generate(adaptive, prompts[3], 48, **asked, **plain)
        assert got.token_ids == expected.token_ids
        assert got.meta["finish_reason"] == expected.meta["finish_reason"]
        assert got.meta["spec_verify_ct"] == len(got.token_ids) - 1


@pytest.mark.parametrize(
    "asked",
    [
        {"frequency_penalty": 0.9, "presence_penalty": 0.4},
        {"min_new_tokens": 20, "ignore_eos": False, "stop_token_ids": list(range(3, 40))},
        {"temperature": 0.8, "sampling_seed": 5, "top_k": 20},
    ],
    ids=["penalties", "minimum length", "seeded"],
)
def test_plain_steps_in_a_row_follow_what_their_requests_ask(adaptive, seeded, prompts, asked):
    plain = {"custom_params": {"dflash2": {"speculate": False}}}
    for prompt in prompts[:3]:
        expected = generate(seeded.plain, prompt, 40, **asked)
        assert generate(adaptive, prompt, 40, **asked, **plain).token_ids == expected.token_ids


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_limits_of_an_openai_request_may_be_a_field_of_their_own(adaptive, endpoint):
    def forwards(**fields):
        return ask(adaptive, endpoint, **fields).sglext["spec_tokens_details"]["spec_verify_ct"]

    assert forwards(dflash2={"speculate": False}) == 23
    assert forwards(dflash2={"max_depth": 1}, custom_params={"other": 1}) >= 23 / 2


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"custom_params": {"dflash2": {"depth": 2}}}, "unknown field `depth`"),
        ({"dflash2": {"depth": 2}}, "unknown field `depth`"),
        ({"dflash2": None}, "Expected `object`, got `null`"),
        ({"dflash2": {}, "custom_params": {"dflash2": {}}}, "once in a request"),
    ],
)
def test_bad_limits_are_refused_by_name_and_cost_nobody_else_anything(
    adaptive, endpoint, fields, sentence
):
    with pytest.raises(BadRequestError, match=sentence):
        ask(adaptive, endpoint, **fields)
    assert len(generate(adaptive, [3, 4, 5], 8).token_ids) == 8


def ask(server, endpoint, **fields):
    """24 greedy tokens of the server's OpenAI endpoint, with further fields in the request."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked = {
        "model": "default",
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": {"ignore_eos": True, "return_spec_tokens_details": True, **fields},
    }
    if endpoint == "chat":
        messages = [{"role": "user", "content": "red"}]
        return client.chat.completions.create(messages=messages, **asked)
    return client.completions.create(prompt="red", **asked)
