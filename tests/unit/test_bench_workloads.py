"""Rows of each benchmark, in a small file of its own form, become prompts."""

import json
from collections import Counter

import pytest

from dflash_sglang.bench import workloads
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.workloads import load_workload, workload_label

ROWS = {
    "gsm8k": ({"question": "How many?", "answer": "#### 4"}, "gsm8k", "How many?", 0),
    "math500": ({"problem": "Find $x$.", "subject": "Algebra"}, "Algebra", "Find $x$.", 0),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():"}, "humaneval", "def f():", 0),
    "mbpp": ({"task_id": 11, "prompt": "Write f.", "code": ""}, "mbpp", "Write f.", 0),
    "livecodebench": (
        {"question_content": "Sum it.", "starter_code": "class A:", "difficulty": "easy"},
        "easy",
        "class A:",
        0,
    ),
    "mtbench": ({"prompt": ["Hello.", "Shorter."], "category": "writing"}, "writing", "Hello.", 1),
    "specbench": ({"turns": ["Ask.", "Again."], "category": "rag"}, "rag", "Ask.", 1),
    "speedbench": ({"turns": ["Code."], "category": "coding"}, "coding", "Code.", 0),
}


def write(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_benchmark_has_a_form_here():
    assert ROWS.keys() == workloads.SOURCES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_local_copy_is_read(name, tmp_path):
    row, category, text, follow_ups = ROWS[name]
    file = write(tmp_path / "rows.jsonl", [row, row])
    prompts = load_workload(f"{name}={file}")
    assert [prompt.id for prompt in prompts] == [f"{name}-0", f"{name}-1"]
    assert prompts[0].category == category
    assert text in prompts[0].messages[0]["content"]
    assert len(prompts[0].follow_ups) == follow_ups
    assert workload_label(f"{name}={file}") == name


@pytest.mark.parametrize("name", ["gsm8k", "mtbench"])
def test_the_hub_is_read_through_datasets(name, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    row, _, text, _ = ROWS[name]
    asked = []

    def load_dataset(repository, config, split):
        asked.append((repository, config, split))
        return datasets.Dataset.from_list([row])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert text in load_workload(name)[0].messages[0]["content"]
    source = workloads.SOURCES[name]
    assert asked == [(source.repository, source.config, source.split)]


def test_a_benchmark_that_cannot_be_loaded_names_the_local_way(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(BenchError, match="gsm8k=FILE"):
        load_workload("gsm8k")


CATEGORIES = {"code", "json", "arithmetic", "chat", "summarising", "translation", "prose"}
MIX = {"code", "json", "chat", "prose"}


def question(prompt) -> str:
    return prompt.messages[0]["content"]


def test_the_builtin_set_has_a_hundred_prompts_of_seven_kinds():
    prompts = load_workload("builtin")
    counts = Counter(prompt.category for prompt in prompts)
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 102
    assert set(counts) == CATEGORIES
    assert min(counts.values()) >= 12
    assert len({question(prompt) for prompt in prompts}) == 102


@pytest.mark.parametrize("category", sorted(CATEGORIES))
def test_one_category_of_the_builtin_set(category):
    prompts = load_workload(f"builtin:{category}")
    assert {prompt.category for prompt in prompts} == {category}
    assert prompts == [p for p in load_workload("builtin") if p.category == category]
    assert workload_label(f"builtin:{category}") == f"builtin:{category}"


@pytest.mark.parametrize("category", sorted(MIX))
def test_the_categories_of_the_mix_have_a_prompt_for_each_of_sixteen_users(category):
    assert len(load_workload(f"builtin:{category}")) == 16


def test_an_unknown_category_is_refused():
    with pytest.raises(BenchError, match=r"expects one of code, json.*prose, got 'haiku'"):
        load_workload("builtin:haiku")


def test_the_builtin_prompts_can_stand_behind_a_long_text():
    plain, longer = load_workload("builtin"), load_workload("builtin+300")
    assert [prompt.id for prompt in plain] == [prompt.id for prompt in longer]
    for short, long in zip(plain, longer, strict=True):
        text = question(long)
        assert text.endswith(question(short))
        assert len(text.split()) == 3 + 300 + len(question(short).split())
    assert len({question(prompt)[:200] for prompt in longer}) == 102
    assert load_workload("builtin+300") == longer


def test_the_builtin_prompts_can_stand_behind_the_same_text():
    longer = [
        *load_workload("builtin@300"),
        *load_workload("builtin:code@300"),
    ]
    before = {" ".join(question(prompt).split()[: 3 + 300]) for prompt in longer}
    assert len(before) == 1
    assert len({question(prompt) for prompt in longer}) == 102
    behind = load_workload("builtin:prose@300")
    for short, long in zip(load_workload("builtin:prose"), behind, strict=True):
        assert question(long).endswith(question(short))


@pytest.mark.parametrize("words", ["", "0", "many", "-3"])
@pytest.mark.parametrize("name", ["builtin+", "builtin@", "builtin:code+"])
def test_a_text_without_length_is_refused(name, words):
    with pytest.raises(BenchError, match="number of words above 0"):
        load_workload(f"{name}{words}")


def test_two_workloads_of_one_name_are_refused(tmp_path):
    file = write(tmp_path / "gsm8k.jsonl", [{"prompt": "x"}])
    with pytest.raises(BenchError, match="two workloads would be called gsm8k"):
        workloads.load_workloads([file, f"gsm8k={file}"], 1)


def test_a_limit_takes_every_category_alike():
    counts = Counter(prompt.category for prompt in load_workload("builtin", 28))
    assert set(counts.values()) == {4}


def test_a_file_of_ones_own(tmp_path):
    file = write(
        tmp_path / "mine.jsonl",
        [
            {"prompt": "One."},
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]},
            {"turns": ["A", "B"], "id": "x", "domain": "d"},
        ],
    )
    prompts = {prompt.id: prompt for prompt in load_workload(file)}
    assert prompts["mine-0"].category == "mine"
    assert [message["role"] for message in prompts["mine-1"].messages] == ["system", "user"]
    assert (prompts["x"].category, prompts["x"].follow_ups) == ("d", ("B",))
    assert workload_label(file) == "mine"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "no prompts"),
        ("not json", "not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"text": "x"}', "exactly one of messages, prompt, turns"),
        ('{"prompt": "x", "turns": ["y"]}', "exactly one"),
    ],
)
def test_bad_files_are_refused(line, sentence, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(BenchError, match=sentence):
        load_workload(str(file))


def test_rows_of_another_benchmark_are_refused(tmp_path):
    file = write(tmp_path / "rows.jsonl", [{"problem": "x"}])
    with pytest.raises(BenchError, match="not gsm8k's: missing 'question'; it has problem"):
        load_workload(f"gsm8k={file}")


@pytest.mark.parametrize("name", ["poetry", "poetry=x.jsonl", "specbench", "/nowhere/x.jsonl"])
def test_what_cannot_be_read_is_refused(name):
    with pytest.raises(BenchError):
        load_workload(name)
