"""Small runs of the benchmark, made up, for the tests of statistics, reports and comparisons."""

from __future__ import annotations

from dflash_sglang.bench.provenance import Measured
from dflash_sglang.bench.records import FORMAT, Answer, Case, Cell, Load, Round, Run, Setup

MEASURED = Measured(
    machine="a machine, 2 cores",
    versions={"sglang": "0.5.23"},
    command="dflash2 bench",
    date="2026-01-02T03:04:05+00:00",
)


def answer(
    steps: int,
    per_step: int,
    step_s: float,
    *,
    prompt: str = "p-0",
    category: str = "code",
    speculative: bool = True,
    text: str = "same",
) -> Answer:
    """A first token after 0.1 s, then ``steps`` chunks of ``per_step`` tokens."""
    return Answer(
        prompt=prompt,
        category=category,
        turn=0,
        prompt_tokens=10,
        tokens=1 + steps * per_step,
        finish_reason="length",
        digest=text,
        chunk_s=[0.1 + step_s * step for step in range(steps + 1)],
        chunk_tokens=[1] + [per_step] * steps,
        total_s=0.1 + step_s * steps,
        verify_steps=steps if speculative else 0,
        accept_histogram=[0] * (per_step - 1) + [steps] if speculative else [],
    )


def plain_and_tree(
    plain_step_s: tuple[float, ...] = (0.010, 0.011, 0.012), tree_speed: float = 2.0
) -> Run:
    """Rounds in which plain takes these steps and the tree is ``tree_speed`` times as fast."""
    cells = []
    for temperature in (0.0, 1.0):
        for users in (1, 4):
            case = Case(workload="builtin", temperature=temperature, load=Load(concurrency=users))
            plain = [
                _round([answer(30, 1, s, speculative=False), _chat(30, 1, s, speculative=False)])
                for s in plain_step_s
            ]
            tree = [
                _round([answer(10, 3, 3 * s / tree_speed), _chat(10, 3, 3 * s / tree_speed)])
                for s in plain_step_s
            ]
            cells += [
                Cell(mode="plain", case=case, rounds=plain),
                Cell(mode="tree", case=case, rounds=tree),
            ]
    return Run(
        format=FORMAT,
        measured=MEASURED,
        setup=Setup(
            target="target",
            drafter="drafter",
            modes={"plain": "python -m sglang.launch_server", "tree": "http://127.0.0.1:1"},
            max_tokens=31,
            prompts={"builtin": 2},
            rounds=len(plain_step_s),
            seed=0,
        ),
        refused={"native": "DFLASH is not supported on device 'cpu'."},
        cells=cells,
    )


def _chat(steps: int, per_step: int, step_s: float, *, speculative: bool = True) -> Answer:
    return answer(steps, per_step, step_s, prompt="p-1", category="chat", speculative=speculative)


def _round(answers: list[Answer]) -> Round:
    return Round(answers=answers, wall_s=sum(answer.total_s for answer in answers))
