"""A pair that does not fit is refused at start, in one sentence with both sides' numbers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_sglang.bench.server import Server, ServerError
from tests.engine.checkpoints import drafter_fields, save_random_drafter
from tests.engine.servers import speculative_server


def dry_run(drafter: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """``dflash2 serve --dry-run`` with the flags of the seed documents' recipe."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "dflash_sglang.cli", "serve", "--dry-run"),
            *("--model-path", "/models/Qwen2.5-32B-Instruct", "--speculative-draft", str(drafter)),
            *("--speculative-algorithm", "dflash2", "--device", "xpu"),
            *("--mem-fraction-static", "0.88", "--tp", "1", "--port", "30000"),
            *("--host", "0.0.0.0"),
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def drafter_with(tmp_path):
    """Writes the config.json of a drafter with some fields replaced."""

    def write(**overrides: object) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({**drafter_fields(), **overrides}))
        return tmp_path

    return write


def test_the_seeds_recipe_resolves_without_its_device(drafter_with):
    done = dry_run(drafter_with(), "--speculative-num-steps", "6")
    assert done.returncode == 0, done.stderr
    assert "device xpu, listening on 0.0.0.0:30000, tensor parallel 1" in done.stdout
    assert "block size 8, depth 6, 32 nodes verified a step" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "flags", "sentence"),
    [
        ({}, ["--speculative-num-steps", "8"], "expected 1 to 7 .* got 8"),
        ({}, ["--dflash2-config", '{"entropy": 1}'], "unknown field `entropy`"),
        ({"partial_rotary_factor": 0.5}, [], "partial_rotary_factor"),
        ({"shift_label": True, "sample_from_anchor": False}, [], "shift_label|sample_from_anchor"),
    ],
    ids=["depth", "tuning", "rotary", "label-shift"],
)
def test_what_cannot_be_honoured_is_named(drafter_with, overrides, flags, sentence):
    done = dry_run(drafter_with(**overrides), *flags)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(sentence, last), done.stderr


@pytest.mark.server
def test_a_drafter_of_another_target_stops_the_server(tiny_qwen3, tmp_path):
    drafter = save_random_drafter(tmp_path, hidden_size=32, head_dim=8)
    server: Server = speculative_server(tiny_qwen3, drafter)
    with pytest.raises(ServerError, match="exited"):
        server.start()
        server.wait()
    assert "hidden size is 32" in server.log.read_text(errors="replace")
