"""What a run measured, as it is written to ``run.json`` and read again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.provenance import Measured

FORMAT = 1


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How requests arrive: a fixed number at a time, or at random moments."""

    concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None  # closed loop
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None  # Poisson, requests per second

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise BenchError("a load is either a concurrency or a rate, not both and not neither.")

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts closed loops by their users, behind them arrivals by their rate."""
        return (self.concurrency or math.inf, self.rate or 0.0)

    @property
    def short(self) -> str:
        """For the marks of a picture: users, or requests a second."""
        return str(self.concurrency) if self.concurrency is not None else f"{self.rate:g}/s"

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"{self.rate:g} requests/s"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What every mode is asked to do alike."""

    workload: str
    temperature: float
    load: Load

    @property
    def rank(self) -> tuple[str, float, tuple[float, float]]:
        """Sorts reports by workload, temperature and load."""
        return (self.workload, self.temperature, self.load.rank)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed answer. Times are seconds since its request was sent."""

    prompt: str  # id
    category: str
    turn: int  # 0-based, in a conversation of several
    prompt_tokens: int
    tokens: int
    finish_reason: str
    digest: str  # of the text, to tell whether two modes said the same
    chunk_s: list[float]  # arrival of each chunk that brought tokens
    chunk_tokens: list[int]  # tokens that it brought
    total_s: float
    verify_steps: int = 0  # target forwards behind the prefill; 0 without speculation
    accept_histogram: list[int] = []  # [j]: steps that accepted j drafted tokens

    @property
    def first_token_s(self) -> float:
        return self.chunk_s[0]


class WidthUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a server that chooses its widths counted; see ``bench.widths``.

    Milliseconds are those of decode steps, tokens those of all requests together.
    """

    steps: dict[int, int]  # nodes verified -> decode steps
    promised_tokens: float  # what the policy expected of these steps
    promised_ms: float
    tokens: float  # what came
    ms: float
    fixed_tokens: dict[int, float]  # nodes -> what that width was to bring if it had been kept
    fixed_ms: dict[int, float]
    choosing_ms: float | None = None  # what choosing took of ms; None: a run that did not ask


class PhaseUse(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a server's decode steps went; see ``bench.phases``."""

    steps: int
    ms: dict[str, float]  # phase -> milliseconds of all steps


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the prompts of a case, in one mode."""

    answers: list[Answer]
    wall_s: float  # from the first request to the last answer
    kv_tokens: int | None = None  # most KV slots in use, if the server tells
    energy_j: float | None = None  # of the whole machine, if the platform tells
    widths: WidthUse | None = None  # if the server chooses them, and tells
    phases: PhaseUse | None = None  # if the server tells


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A mode in a case, with its repetitions."""

    mode: str
    case: Case
    rounds: list[Round]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    target: str
    drafter: str | None
    modes: dict[str, str]  # mode -> the command of its server, or the URL that was given
    max_tokens: int
    prompts: dict[str, int]  # workload -> prompts of a round
    rounds: int
    seed: int
    prompts_per_user: int | None = None  # None: every load is asked all prompts of a round
    least_prompts: int = 1  # otherwise, however few the users are
    keeps_cache: bool = False  # prefix caches were not emptied before each round
    starts: int = 1  # of the servers, over which the rounds were spread


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    format: int
    measured: Measured
    setup: Setup
    refused: dict[str, str]  # mode -> why it could not be measured
    cells: list[Cell]

    def cell(self, mode: str, case: Case) -> Cell | None:
        """The cell of a mode in a case, if it was measured."""
        found = (cell for cell in self.cells if (cell.mode, cell.case) == (mode, case))
        return next(found, None)

    @property
    def cases(self) -> list[Case]:
        return sorted({cell.case for cell in self.cells}, key=lambda case: case.rank)

    @property
    def modes(self) -> list[str]:
        """Modes that were measured, in the order of the setup."""
        measured = {cell.mode for cell in self.cells}
        return [mode for mode in self.setup.modes if mode in measured]


class _Head(msgspec.Struct):
    """What every format of a run's file has."""

    format: int


def write_run(run: Run, path: Path) -> None:
    """Write a run; every request of it, so that reports can be drawn again."""
    path.write_bytes(msgspec.json.encode(run) + b"\n")


def read_run(path: Path) -> Run:
    """Read a run back.

    Raises:
        BenchError: no such file, one that ``dflash2 bench`` did not write, or one of a version
            whose format was another.
    """
    try:
        encoded = path.read_bytes()
        # Before the rest, which another format need not have.
        version = msgspec.json.decode(encoded, type=_Head).format
        run = msgspec.json.decode(encoded, type=Run) if version == FORMAT else None
    except OSError as error:
        raise BenchError(
            f"cannot read {path}: {error.strerror}; expected the run.json of a bench run."
        ) from error
    except msgspec.DecodeError as error:
        raise BenchError(f"{path} is not the run.json of a bench run: {error}.") from error
    if run is None:
        raise BenchError(f"{path} has format {version}, this version reads format {FORMAT}.")
    return run
