"""Whatever a request asks for, its tokens are those of SGLang without speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from safetensors.torch import load_file

from dflash_sglang.bench.server import Server, ServerError, running
from tests.engine.checkpoints import VOCAB
from tests.engine.servers import plain_server, speculative_server
from tests.engine.surface import (
    LENGTH,
    OPTIONS,
    PROCESSORS,
    ROBOT,
    SAMPLING,
    ask,
    ask_all,
    every_kind,
    outcome,
)
from tests.engine.test_cases import assert_pool_is_whole
from tests.engine.traffic import TIMEOUT, make_prompts

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return make_prompts(3, VOCAB - 1, longest=60, seed=2)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_gives_the_tokens_of_plain_decoding(seeded, prompts, option):
    """Greedy and seeded requests share the tree's batches; without speculation each is alone,
    since there SGLang's seeded sampler lets the batch decide."""
    requests = [
        (prompt, {**sampling, **OPTIONS[option]})
        for prompt in prompts
        for sampling in SAMPLING.values()
    ]
    expected = ask_all(seeded.plain, requests, concurrency=1)
    got = ask_all(seeded.tree, requests, concurrency=4)
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]


def test_requests_of_every_kind_share_batches(seeded, prompts):
    requests = every_kind(prompts[:2])
    expected = ask_all(seeded.plain, requests, concurrency=1)
    got = ask_all(seeded.tree, requests, concurrency=10)
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]


def test_retracted_and_mixed_requests_keep_their_state(seeded, crowded):
    """Output read again behind a retraction counts, and so does what runs beside prompt chunks."""
    long_prompts = make_prompts(3, VOCAB - 1, longest=250, seed=6)
    requests = [
        (prompt, {**kind, "max_new_tokens": 96}) for prompt, kind in every_kind(long_prompts)
    ]
    expected = ask_all(seeded.plain, requests, concurrency=1)
    got = ask_all(crowded, requests, concurrency=12)
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]
    log = crowded.log.read_text(errors="replace")
    assert "etract" in log, "the server was not crowded enough to retract"
    assert_pool_is_whole(crowded)


def test_grammars_yield_what_they_describe(seeded, prompts):
    """Equality alone would hold between two servers that ignore the grammar."""
    for prompt in prompts:
        answer = ask(seeded.tree, prompt, max_new_tokens=200, **OPTIONS["json schema"])
        robot = json.loads(answer["text"])
        assert set(robot) == set(ROBOT["properties"])
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_drafts_are_accepted_under_a_grammar(seeded, prompts):
    """Else the window would never reach past the end of the grammar."""
    answers = [
        ask(seeded.tree, prompt, **OPTIONS["ebnf"], max_new_tokens=200) for prompt in prompts
    ]
    steps = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    tokens = sum(len(answer["output_ids"]) - 1 for answer in answers)
    assert tokens > steps


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_custom_processors_see_the_same_output(seeded, prompts, processor, sampling):
    requests = [(prompt, {**SAMPLING[sampling], **PROCESSORS[processor]}) for prompt in prompts]
    expected = ask_all(seeded.plain, requests, concurrency=4)
    got = ask_all(seeded.tree, requests, concurrency=4)
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]


def test_a_processor_that_forbids_repeated_pairs_leaves_none(seeded, prompts):
    for prompt in prompts:
        answer = ask(seeded.tree, prompt, temperature=0.0, **PROCESSORS["no pair of tokens twice"])
        text = prompt + answer["output_ids"]
        for place in range(len(prompt), len(text)):
            assert (text[place - 1], text[place]) not in pairwise(text[:place])


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("option", ["nothing", "frequency", "regex", "bias"])
def test_logprobs_of_delivered_tokens_are_those_of_plain_decoding(
    seeded, prompts, option, sampling
):
    asked = {"return_logprob": True, "top_logprobs_num": 4, "token_ids_logprob": [3, 8]}
    for prompt in prompts[:2]:
        body = {**asked, **SAMPLING[sampling], **OPTIONS[option]}
        expected = ask(seeded.plain, prompt, **body, logprob_start_len=0)
        got = ask(seeded.tree, prompt, **body, logprob_start_len=0)
        assert outcome(got) == outcome(expected)
        for name in (
            *("input_token_logprobs", "output_token_logprobs"),
            *("output_top_logprobs", "output_token_ids_logprobs"),
        ):
            assert_logprobs_agree(got["meta_info"][name], expected["meta_info"][name])


def assert_logprobs_agree(got: Any, expected: Any) -> None:
    """Nested lists of [log-probability, token, text]: same shape and tokens, values to rounding."""
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_logprobs_agree(ours, theirs)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, abs=1e-4)
    else:
        assert got == expected


@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_stop_string_ends_the_text_at_the_same_place(seeded, prompts, sampling):
    for prompt in prompts:
        text = ask(seeded.plain, prompt, **SAMPLING[sampling])["text"]
        for start, end in ((3, 5), (9, 12), (20, 21)):
            asked = {**SAMPLING[sampling], "stop": [text[start:end], "never this"]}
            expected, got = (ask(server, prompt, **asked) for server in seeded)
            assert got["text"] == expected["text"]
            assert outcome(got) == outcome(expected)


@pytest.mark.parametrize("option", ["nothing", "frequency", "regex"])
def test_several_answers_to_one_request(seeded, prompts, option):
    asked = {**SAMPLING["seeded"], **OPTIONS[option], "n": 3}
    expected, got = (ask(server, prompts[1], **asked) for server in seeded)
    assert len(got) == 3
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]


@pytest.mark.parametrize("option", ["nothing", "presence", "json schema"])
def test_a_stream_carries_the_same_tokens(seeded, prompts, option):
    asked = {"max_new_tokens": LENGTH, "temperature": 0.0, **OPTIONS[option]}
    whole = ask(seeded.plain, prompts[2], **asked)
    body = {"input_ids": prompts[2], "sampling_params": asked, "stream": True}
    body["sampling_params"].setdefault("ignore_eos", True)
    with httpx.stream("POST", f"{seeded.tree.url}/generate", json=body, timeout=TIMEOUT) as stream:
        events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    last = json.loads(events[-2])
    assert last["text"] == whole["text"]
    assert last["meta_info"]["completion_tokens"] == whole["meta_info"]["completion_tokens"]


def test_a_session_goes_on_from_its_cached_text(seeded, prompts):
    texts = []
    for server in seeded:
        session = httpx.post(
            f"{server.url}/open_session", json={"capacity_of_str_len": 1000}, timeout=TIMEOUT
        ).json()
        first = ask(
            server,
            prompts[2],
            temperature=0.0,
            frequency_penalty=0.5,
            rid="turn-1",
            session_params={"id": session},
        )
        second = ask(
            server,
            [4, 5, 6],
            temperature=0.0,
            frequency_penalty=0.5,
            rid="turn-2",
            session_params={"id": session, "rid": "turn-1"},
        )
        assert second["meta_info"]["prompt_tokens"] >= len(prompts[2]) + LENGTH
        texts.append([outcome(first), outcome(second)])
        httpx.post(f"{server.url}/close_session", json={"session_id": session}, timeout=TIMEOUT)
    assert texts[0] == texts[1]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a tool",
            "strict": True,  # else the arguments may be any JSON, and a random model never ends
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["rome", "oslo", "lima"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
            },
        },
    }
    for name in ("weather", "news")
]


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}], ids=str
)
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "news"}}], ids=str
)
def test_tool_calls_are_the_same_and_can_be_parsed(seeded, choice, sampling):
    calls = []
    for server in seeded:
        api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT)
        answer = api.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "how is the weather in rome?"}],
            tools=TOOLS,
            tool_choice=choice,
            max_tokens=400,
            **sampling,
        )
        message = answer.choices[0].message
        calls.append([(call.function.name, call.function.arguments) for call in message.tool_calls])
    assert calls[0] == calls[1]
    for name, arguments in calls[1]:
        assert name in ("weather", "news")
        assert json.loads(arguments)["city"] in ("rome", "oslo", "lima")


def test_a_response_format_is_the_same_through_openais_protocol(seeded):
    texts = []
    for server in seeded:
        api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT)
        answer = api.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "who?"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "robot", "schema": ROBOT},
            },
            max_tokens=300,
            seed=9,
            temperature=1.0,
            frequency_penalty=0.2,
            logprobs=True,
            top_logprobs=2,
        )
        texts.append(answer.choices[0].message.content)
    assert texts[0] == texts[1]
    assert json.loads(texts[1])["name"] in ("ada", "alan", "grace")


@pytest.mark.parametrize(
    "asked",
    [{"return_hidden_states": True}, {"min_p": 0.1}, {"return_sampling_mask": True, "top_k": 4}],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name_and_the_server_goes_on(crowded, prompts, asked):
    (name, value), *params = asked.items()
    params = {"max_new_tokens": 4, "temperature": 0.7, **dict(params)}
    body = {"input_ids": prompts[0], "sampling_params": params}
    (params if name == "min_p" else body)[name] = value
    answer = httpx.post(f"{crowded.url}/generate", json=body, timeout=TIMEOUT)
    assert answer.status_code == 400
    assert f"dflash2 does not support {name}" in answer.text or "know min_p" in answer.text
    assert ask(crowded, prompts[0], temperature=0.0)["output_ids"]


class Variants(NamedTuple):
    """Another grammar backend and no prefix cache, without speculation and with a chain."""

    plain: Server
    chain: Server


@pytest.fixture(scope="module")
def variants(tiny_qwen3, tiny_drafter) -> Iterator[Variants]:
    common = (
        *("--disable-overlap-schedule", "--enable-deterministic-inference"),
        *("--disable-radix-cache", "--grammar-backend", "llguidance"),
    )
    pair = Variants(
        plain_server(tiny_qwen3, *common),
        speculative_server(tiny_qwen3, tiny_drafter, "--speculative-eagle-topk", "1", *common),
    )
    with running(*pair):
        yield pair


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_chain_without_overlap_gives_them_too(variants, prompts, option, sampling):
    requests = [(prompt, {**SAMPLING[sampling], **OPTIONS[option]}) for prompt in prompts]
    expected = ask_all(variants.plain, requests, concurrency=4)
    got = ask_all(variants.chain, requests, concurrency=4)
    assert [outcome(answer) for answer in got] == [outcome(answer) for answer in expected]


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
@pytest.mark.parametrize("option", ["nothing", "frequency", "json schema"])
def test_a_prompt_of_embeddings_gives_the_same_tokens(variants, tiny_qwen3, option, sampling):
    """SGLang takes them without a prefix cache only."""
    table = load_file(tiny_qwen3 / "model.safetensors")["model.embed_tokens.weight"]  # [V, D]
    # Rows between the tokens' own, so that no token could stand for them.
    prompt = (table[[3, 9, 27, 5, 8]] + 0.01).tolist()
    asked = {**SAMPLING[sampling], **OPTIONS[option], "input_embeds": prompt}
    expected, got = (ask(server, None, **asked) for server in variants)
    assert outcome(got) == outcome(expected)


def test_lora_is_refused_by_name(tiny_qwen3, tiny_drafter):
    server = speculative_server(
        tiny_qwen3,
        tiny_drafter,
        *("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"),
    )
    with pytest.raises(ServerError, match="exited"):
        server.start()
        server.wait()
    assert "not DFLASH2" in server.log.read_text(errors="replace")
