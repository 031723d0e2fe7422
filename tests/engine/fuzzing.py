"""Random requests over everything a request can ask, many at once, and what must hold of each.

The target is one of the tiny ones with the character tokenizer. A request is drawn from a seed, so
that a failure can be drawn again.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from dflash_sglang.bench.server import Server
from tests.engine.checkpoints import VOCAB
from tests.engine.surface import PROCESSORS
from tests.engine.tokenizers import CHARACTERS, character_tokenizer

HANG = 120.0  # seconds after which an answer is overdue
_LONGEST_PROMPT = 220
_LONGEST_ANSWER = 64
_BEGIN, _END = character_tokenizer().bos_token_id, character_tokenizer().eos_token_id

REGEXES = ("(ab|cd|e[0-9]{1,4}f){3,9}!", "[a-c]{5,40}", "x(yz){2,}?w?", "([a-f]{2,5}[0-9]){2,6}")
STOP_REGEXES = ("[0-9]{2}", "[a-m][n-z]$", "x.?y|(ab){1,2}")
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    {"type": "array", "items": {"enum": ["a", "ab", "abc"]}, "minItems": 1, "maxItems": 9},
)
_GRAMMAR_KINDS = {"regex", "json_schema", "ebnf"}
GRAMMARS = ('root ::= item+ "."\nitem ::= "x" | "yz" | "(" item item? ")"',)
INVALID: tuple[dict[str, Any], ...] = (
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"top_k": 0},
    {"frequency_penalty": 3.0},
    {"max_new_tokens": -1},
    {"logit_bias": {str(VOCAB): 1.0}},
    {"regex": "a", "ebnf": 'root ::= "a"'},
)


@dataclass
class FuzzRequest:
    """One request and what is expected of it."""

    body: dict[str, Any]  # of /generate
    refusable: bool = False  # SGLang or dflash2 may answer 400
    leaves_after: int | None = None  # the client goes away after so many events of the stream
    aborts_after: float | None = None  # somebody aborts it by its id after so many seconds

    @property
    def sampling(self) -> dict[str, Any]:
        return self.body["sampling_params"]

    @property
    def is_reproducible(self) -> bool:
        """Do all servers of the target have to give the same tokens?"""
        decided = self.sampling["temperature"] == 0 or "sampling_seed" in self.sampling
        stays = self.leaves_after is None and self.aborts_after is None
        return decided and stays and not self.refusable

    @property
    def kind(self) -> str:
        """For the summary: what is unusual about it."""
        marks = {
            "several answers": self.sampling.get("n", 1) > 1,
            "stream": self.body.get("stream", False),
            "client leaves": self.leaves_after is not None,
            "aborted": self.aborts_after is not None,
            "refusable": self.refusable,
        }
        return ", ".join(name for name, holds in marks.items() if holds) or "plain"


def draw_request(rng: Random, name: str) -> FuzzRequest:
    """One request; ``name`` becomes part of its id."""
    sampling: dict[str, Any] = {
        "max_new_tokens": rng.randint(1, _LONGEST_ANSWER),
        "ignore_eos": rng.random() < 0.5,
        **_law(rng),
        **_some(rng, 0.3, _penalties),
        **_some(rng, 0.3, _ends),
        **_some(rng, 0.2, _bias),
    }
    if rng.random() < 0.3:
        # A grammar ends with the end token, whatever else was asked about it.
        sampling = {**sampling, **_grammar(rng), "ignore_eos": False}
        sampling.pop("min_new_tokens", None)
    body = {"input_ids": _prompt(rng), "sampling_params": sampling, **_some(rng, 0.3, _logprobs)}
    if not _GRAMMAR_KINDS & sampling.keys() and rng.random() < 0.15:
        # Beside a grammar it might leave no token at all.
        processor = dict(rng.choice(list(PROCESSORS.values())))
        sampling["custom_params"] = processor.pop("custom_params")
        body.update(processor)
    if rng.random() < 0.15:
        sampling["n"] = rng.randint(2, 3)
    else:
        body["rid"] = name
    return _with_manners(rng, FuzzRequest(body))


def _with_manners(rng: Random, request: FuzzRequest) -> FuzzRequest:
    """Streams, clients that leave, aborts, and requests that nobody should send."""
    sampling = request.sampling
    if rng.random() < 0.04:
        sampling.update(rng.choice(INVALID))
        request.refusable = True
    elif rng.random() < 0.05:
        # Refused with deterministic inference by SGLang itself.
        sampling["min_p"] = rng.choice([0.02, 0.1, 0.3])
        request.refusable = True
    elif rng.random() < 0.35:
        request.body["stream"] = True
        if rng.random() < 0.3:
            request.leaves_after = rng.randint(0, 3)
    elif rng.random() < 0.08 and "n" not in sampling:
        request.aborts_after = rng.choice([0.0, 0.02, 0.2])
    return request


def _some(rng: Random, chance: float, draw: Callable[[Random], dict[str, Any]]) -> dict[str, Any]:
    return draw(rng) if rng.random() < chance else {}


def _law(rng: Random) -> dict[str, Any]:
    law: dict[str, Any] = {"temperature": rng.choice([0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 1.5])}
    if rng.random() < 0.3:
        law["top_k"] = rng.choice([1, 2, 8, 20, VOCAB])
    if rng.random() < 0.3:
        law["top_p"] = rng.choice([0.05, 0.5, 0.9, 0.99])
    if rng.random() < 0.6:
        law["sampling_seed"] = rng.choice([0, 1, 42, rng.getrandbits(31), rng.getrandbits(62)])
    return law


def _penalties(rng: Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        # Alone: beside the others SGLang's order is a set's, so the baseline has no one answer.
        return {"repetition_penalty": rng.choice([0.8, 1.2, 1.8])}
    drawn = {
        "frequency_penalty": rng.choice([-0.4, 0.5, 1.9]),
        "presence_penalty": rng.choice([-0.3, 0.7, 1.5]),
    }
    return {name: value for name, value in drawn.items() if rng.random() < 0.6}


def _ends(rng: Random) -> dict[str, Any]:
    letters = CHARACTERS.replace("\n", "")
    ends: dict[str, Any] = {}
    if rng.random() < 0.5:
        ends["stop"] = [
            "".join(rng.choices(letters, k=rng.randint(1, 2))) for _ in range(rng.randint(1, 3))
        ]
    if rng.random() < 0.2:
        ends["stop_regex"] = [rng.choice(STOP_REGEXES)]
    if rng.random() < 0.5:
        ends["stop_token_ids"] = rng.sample(range(2, VOCAB - 1), rng.randint(1, 4))
    if rng.random() < 0.3:
        ends["min_new_tokens"] = 1
    return ends


def _bias(rng: Random) -> dict[str, Any]:
    tokens = rng.sample(range(VOCAB), rng.randint(1, 4))
    return {"logit_bias": {str(token): rng.choice([-100.0, -2.0, 1.5, 4.0]) for token in tokens}}


def _grammar(rng: Random) -> dict[str, Any]:
    return rng.choice(
        [
            {"regex": rng.choice(REGEXES)},
            {"json_schema": json.dumps(rng.choice(SCHEMAS))},
            {"ebnf": rng.choice(GRAMMARS)},
        ]
    )


def _logprobs(rng: Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"return_logprob": True}
    if rng.random() < 0.5:
        asked["top_logprobs_num"] = rng.randint(1, 5)
    if rng.random() < 0.3:
        asked["token_ids_logprob"] = rng.sample(range(VOCAB), 3)
    if rng.random() < 0.3:
        asked["logprob_start_len"] = 0
    return asked


def _prompt(rng: Random) -> list[int]:
    """Of any length; some repeat the start of others, so that prefixes are shared."""
    shared = Random(rng.randrange(4))
    text = [shared.randrange(2, VOCAB - 1) for _ in range(_LONGEST_PROMPT)]
    length = rng.choice([1, 2, rng.randint(1, 20), rng.randint(1, _LONGEST_PROMPT)])
    kept = rng.randint(0, length)
    return text[:kept] + [rng.randrange(2, VOCAB - 1) for _ in range(length - kept)]


# Sending and judging ---------------------------------------------------------------------------


@dataclass
class FuzzReport:
    """What a run saw."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    comparable: list[tuple[FuzzRequest, list[list[int]]]] = field(default_factory=list)


class Fuzzer:
    """Sends random requests to one server.

    Args:
        server: the server under test.
        seed: of all requests.
        width: requests at once.
    """

    def __init__(self, server: Server, seed: int, width: int) -> None:
        self._server = server
        self._seed = seed
        self._width = width
        self._lock = threading.Lock()
        self._report = FuzzReport()

    def run(self, seconds: float) -> FuzzReport:
        """Send until the time is over or something failed."""
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(self._width) as pool:
            list(pool.map(lambda worker: self._work(worker, deadline), range(self._width)))
        return self._report

    def _work(self, worker: int, deadline: float) -> None:
        rng = Random(self._seed * 1000 + worker)
        serial = 0
        with httpx.Client(timeout=HANG) as client:
            while time.monotonic() < deadline and not self._report.failures:
                request = draw_request(rng, f"fuzz-{self._seed}-{worker}-{serial}")
                serial += 1
                failure, outputs = self._try(client, request)
                with self._lock:
                    self._report.kinds[request.kind] += 1
                    if failure is not None:
                        self._report.failures.append(f"{failure}: {json.dumps(request.body)}")
                    elif outputs and request.is_reproducible:
                        self._report.comparable.append((request, outputs))

    def _try(
        self, client: httpx.Client, request: FuzzRequest
    ) -> tuple[str | None, list[list[int]]]:
        """What is wrong with the answer, if anything, and the tokens of each answer."""
        try:
            status, answers = send(client, self._server.url, request)
        except httpx.TimeoutException:
            return f"no answer within {HANG:.0f} s", []
        except httpx.HTTPError as error:
            return f"the connection broke ({error!r})", []
        if status == httpx.codes.BAD_REQUEST and (request.refusable or request.aborts_after):
            return None, []
        if status != httpx.codes.OK:
            return f"HTTP {status}", []
        if request.leaves_after is not None:
            return None, []
        if len(answers) != request.sampling.get("n", 1):
            return f"{len(answers)} answers", []
        wrong = [fault for answer in answers if (fault := fault_of(request, answer))]
        return (wrong[0] if wrong else None), [answer["output_ids"] for answer in answers]


def send(client: httpx.Client, url: str, request: FuzzRequest) -> tuple[int, list[dict[str, Any]]]:
    """Status and answers, those of a stream put together."""
    if request.body.get("stream"):
        return _send_stream(client, url, request)
    abort = None
    if request.aborts_after is not None:
        rid = {"rid": request.body["rid"]}
        abort = threading.Timer(
            request.aborts_after,
            lambda: httpx.post(f"{url}/abort_request", json=rid, timeout=HANG),
        )
        abort.start()
    answer = client.post(f"{url}/generate", json=request.body)
    if abort is not None:
        abort.join()
    if answer.status_code != httpx.codes.OK:
        return answer.status_code, []
    body = answer.json()
    return answer.status_code, body if isinstance(body, list) else [body]


def _send_stream(
    client: httpx.Client, url: str, request: FuzzRequest
) -> tuple[int, list[dict[str, Any]]]:
    last: dict[int, dict[str, Any]] = {}
    with client.stream("POST", f"{url}/generate", json=request.body) as stream:
        for events, line in enumerate(stream.iter_lines()):
            if request.leaves_after is not None and events >= request.leaves_after:
                break
            if line.startswith("data: {"):
                event = json.loads(line[len("data: ") :])
                if "error" in event:
                    return event["error"]["code"], []
                last[event.get("index", 0)] = event
        return stream.status_code, list(last.values())


def fault_of(request: FuzzRequest, answer: dict[str, Any]) -> str | None:
    """What contradicts the request in one answer, or None."""
    sampling, meta = request.sampling, answer["meta_info"]
    tokens, reason = answer["output_ids"], meta["finish_reason"]["type"]
    if reason == "abort":
        return None if request.aborts_after is not None else "aborted by nobody"
    if reason not in ("stop", "length"):
        return f"finish reason {reason}"
    if len(tokens) > sampling["max_new_tokens"]:
        return f"{len(tokens)} tokens"
    if meta["completion_tokens"] != len(tokens):
        return f"{meta['completion_tokens']} tokens counted, {len(tokens)} delivered"
    if reason == "length" and len(tokens) != sampling["max_new_tokens"]:
        return f"ended for its length after {len(tokens)} tokens"
    # To SGLang ignore_eos means the stop tokens as well.
    ends = set() if sampling["ignore_eos"] else {_END, *sampling.get("stop_token_ids", ())}
    if ends & set(tokens[:-1]):
        return "went on behind a stop token"
    if request.body.get("return_logprob") and len(meta["output_token_logprobs"]) != len(tokens):
        return f"{len(meta['output_token_logprobs'])} log-probabilities for {len(tokens)} tokens"
    return _text_fault(sampling, answer)


def _text_fault(sampling: dict[str, Any], answer: dict[str, Any]) -> str | None:
    text, finish = answer["text"], answer["meta_info"]["finish_reason"]
    # Special tokens part two characters that stand side by side in the text.
    is_whole = not {_BEGIN, _END} & set(answer["output_ids"])
    if is_whole and any(stop in text for stop in sampling.get("stop", ())):
        return "the text holds a stop string"
    # A grammar is complete where the end token ended the answer, not a stop string or token.
    if finish.get("matched") != _END:
        return None
    if "regex" in sampling and not re.fullmatch(sampling["regex"], text):
        return f"the text {text!r} does not match its regex"
    if "json_schema" in sampling:
        try:
            json.loads(text)
        except ValueError:
            return f"the text {text!r} is no JSON"
    return None
