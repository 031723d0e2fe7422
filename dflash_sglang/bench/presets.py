"""What is measured where the command line does not say otherwise."""

from __future__ import annotations

from typing import NamedTuple

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.modes import Mode
from dflash_sglang.bench.records import Case

_CREATIVE = "builtin:prose"
_MIX_CATEGORIES = ("code", "json", "chat", "prose")


class Preset(NamedTuple):
    """Values of options that were left out."""

    modes: str
    workloads: list[str]
    prompts: int
    prompts_per_user: int | None
    least_prompts: int
    max_tokens: int
    ignore_eos: bool
    temperature: str
    concurrency: str
    rounds: int
    starts: int
    keep_cache: bool
    kv_tokens: int  # slots of the demo pair's servers
    greedy_prose: bool  # whether creative prompts are asked greedily, too

    def asks(self, case: Case) -> bool:
        """Whether the preset's own temperatures are meant for a case."""
        greedy_prose = case.temperature == 0 and case.workload.startswith(_CREATIVE)
        return self.greedy_prose or not greedy_prose

    def starts_of(self, option: int | None, rounds: int, urls: list[Mode]) -> int:
        """Starts of the servers.

        Raises:
            BenchError: there are servers that are not started here, or fewer rounds.
        """
        if option is None:
            return 1 if urls else min(self.starts, rounds)
        if urls and option > 1:
            raise BenchError(
                f"--starts {option} starts servers again, which cannot be done with that of "
                f"--url {urls[0]}=...: leave one of the two out."
            )
        if option > rounds:
            raise BenchError(f"--starts expects no more than the {rounds} rounds, got {option}.")
        return option

    def least_prompts_of(
        self, option: int | None, prompts_per_user: int | None, prompts: int
    ) -> int:
        """Prompts of a case in a round, however few its users are.

        Raises:
            BenchError: every case is asked all prompts, or there are fewer.
        """
        if option is None:
            return min(self.least_prompts, prompts)
        if prompts_per_user is None and self.prompts_per_user is None:
            raise BenchError(
                "--least-prompts is for --prompts-per-user or --mix: without them every case is "
                f"asked all {prompts} prompts."
            )
        if option > prompts:
            raise BenchError(
                f"--least-prompts expects no more than the {prompts} of --prompts, got {option}."
            )
        return option


STANDARD = Preset(
    modes="plain,native,chain,tree",
    workloads=["builtin"],
    prompts=16,
    prompts_per_user=None,
    least_prompts=1,
    max_tokens=64,
    ignore_eos=False,
    temperature="0,1",
    concurrency="1,4,8",
    rounds=4,
    starts=1,
    keep_cache=False,
    kv_tokens=20_000,
    greedy_prose=True,
)


def mix(context_words: int) -> Preset:
    """Kinds of text, temperatures, loads and contexts that want different widths.

    Short answers, and contexts that all users share and find in the prefix cache, since what is
    compared is decoding. Many rounds, whose medians are held against each other: single ones are
    seconds long, and other work on the machine can take most of them. And several starts of the
    servers, each of which has luck of its own with where its memory lies.

    Args:
        context_words: of the text before each prompt of the long contexts.
    """
    texts = ("", f"@{context_words}")
    return STANDARD._replace(
        modes="plain,tree4,tree8,tree16,adaptive",
        workloads=[f"builtin:{kind}{text}" for kind in _MIX_CATEGORIES for text in texts],
        prompts_per_user=1,
        least_prompts=4,
        max_tokens=48,
        # Equally many tokens in every cell, also where a small target ends at once.
        ignore_eos=True,
        concurrency="1,4,8,16",
        rounds=6,
        starts=6,
        keep_cache=True,
        # Between two rounds nothing is evicted that the next one asks for again.
        kv_tokens=40_000,
        greedy_prose=False,
    )
