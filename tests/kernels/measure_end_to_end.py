"""What the kernels are worth in a server: the demo's chats with them and with their references.

    python tests/kernels/measure_end_to_end.py [--max-tokens 96]

Two servers of the demo pair with dflash2 run side by side, one under ``DFLASH2_KERNELS=reference``,
and answer every question in turns, so that other load on the machine meets both. Without compiled
kernels the target too runs on SGLang's own CPU operations. Reported are decoding speeds, their
ratio, and whether the answers are token for token the same.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from dflash_sglang.bench.client import Client
from dflash_sglang.bench.server import Server, cpu_arguments, running
from dflash_sglang.demo.run import PAIR, _ask, summarise
from dflash_sglang.kernels.build import MODE_VARIABLE


def measure(max_tokens: int) -> dict[str, Any]:
    """Tokens a second with the references and with the kernels, and their ratio."""
    arguments = [
        *("--model-path", str(PAIR / "target"), "--dtype", "float32", *cpu_arguments()),
        *("--speculative-algorithm", "dflash2", "--speculative-draft", str(PAIR / "drafter")),
        *("--speculative-num-draft-tokens", "16"),
    ]
    modes = ("reference", "compiled")
    servers = [Server(arguments, environment={MODE_VARIABLE: mode}) for mode in modes]
    with running(*servers):
        answers = list(_ask(*map(Client, servers), max_tokens))
    figures = summarise(answers)
    return {
        "reference_tokens_per_s": figures["baseline"]["tokens_per_s"],
        "compiled_tokens_per_s": figures["dflash2"]["tokens_per_s"],
        "gain": figures["speedup"],
        "identical": figures["identical"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-tokens", type=int, default=96)
    print(json.dumps(measure(parser.parse_args().max_tokens), indent=2))


if __name__ == "__main__":
    main()
