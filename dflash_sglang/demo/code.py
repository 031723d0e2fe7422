"""Code: functions, small edits, explanations, tests, dataclasses, SQL, scripts."""

from __future__ import annotations

from random import Random

from dflash_sglang.demo.functions import Function, draw_function
from dflash_sglang.demo.sample import (
    CITIES,
    NAMES,
    Generator,
    Sample,
    an,
    bullets,
    dialogue,
    listed,
    numbered,
    several,
)


def _block(source: str, language: str = "python") -> str:
    return f"```{language}\n{source}\n```"


def _about(kind: str, function: Function, prompt: str, answer: str) -> Sample:
    return dialogue("code", (kind, function.name, *function.arguments), prompt, answer)


def write_function(rng: Random) -> Sample:
    f = draw_function(rng)
    hinted = rng.random() < 0.25
    extra = " Use type annotations." if hinted else ""
    prompt = (
        rng.choice(
            [
                f"Write a Python function that {f.task}.",
                f"Write a function {f.name} that {f.task}.",
                f"Please write a Python function {f.name}({', '.join(f.arguments)}) that {f.task}.",
                f"How do I write a Python function that {f.task}?",
                f"I need a Python function that {f.task}.",
            ]
        )
        + extra
    )
    call, result = f.call(Random(f.name))
    answer = (
        f"Here is a Python function that {f.task}:\n\n{_block(f.source(hinted=hinted))}\n\n"
        f"For example, `{call}` returns `{result}`."
    )
    return _about("write", f, prompt, answer)


def write_of_two(rng: Random) -> Sample:
    f, g = draw_function(rng), draw_function(rng)
    while g.name == f.name:
        g = draw_function(rng)
    prompt = f"Write two Python functions: one that {f.task}, and one that {g.task}."
    answer = (
        f"Here are the two functions.\n\n{_block(f.source() + chr(10) * 3 + g.source())}\n\n"
        f"`{f.name}` {f.task}, and `{g.name}` {g.task}."
    )
    return dialogue("code", ("two", f.name, g.name), prompt, answer)


def add_docstring(rng: Random) -> Sample:
    f = draw_function(rng)
    prompt = f"Add a docstring to this function:\n\n{_block(f.source(documented=False))}"
    answer = f"The function {f.task}. With a docstring:\n\n{_block(f.source())}"
    return _about("docstring", f, prompt, answer)


def add_types(rng: Random) -> Sample:
    f = draw_function(rng)
    prompt = f"Add type annotations to this function:\n\n{_block(f.source())}"
    each = listed([f"`{a}`" for a in f.arguments])
    answer = (
        f"The function {f.task}, so {each} should be annotated as `{f.hint}`:\n\n"
        f"{_block(f.source(hinted=True))}"
    )
    return _about("types", f, prompt, answer)


def rename_function(rng: Random) -> Sample:
    f = draw_function(rng)
    new = rng.choice(["compute", "my_function", "helper", "run", "process", "solve", "calculate"])
    prompt = f"Rename the function {f.name} to {new}:\n\n{_block(f.source())}"
    answer = f"The function is now called `{new}`:\n\n{_block(f.source(name=new))}"
    return _about(f"rename {new}", f, prompt, answer)


def write_tests(rng: Random) -> Sample:
    f = draw_function(rng)
    examples = Random(f.name)
    calls = dict(f.call(examples) for _ in range(3))
    checks = "\n".join(f"    assert {call} == {result}" for call, result in calls.items())
    prompt = f"Write a test for this function:\n\n{_block(f.source())}"
    answer = (
        f"The function {f.task}. Here is a test with {len(calls)} cases:\n\n"
        f"{_block(f'def test_{f.name}():' + chr(10) + checks)}"
    )
    return _about("test", f, prompt, answer)


def _explain_line(line: str) -> str:
    line = line.strip()
    for start, meaning in (
        ("for ", "starts a loop"), ("while ", "repeats as long as the condition holds"),
        ("if ", "checks a condition"), ("return", "gives back the result"),
        ("def ", "defines the function"),
    ):  # fmt: skip
        if line.startswith(start):
            return f"`{line}` {meaning}."
    if "+=" in line or "-=" in line or "*=" in line or "//=" in line:
        return f"`{line}` updates the value."
    return f"`{line}` changes the result." if "(" in line else f"`{line}` sets a value."


def explain(rng: Random) -> Sample:
    f = draw_function(rng)
    prompt = rng.choice(["Explain this function:", "What does this code do?"])
    lines = f.source(documented=False).split("\n")
    call, result = f.call(Random(f.name))
    answer = (
        f"The function `{f.name}` {f.task}. Line by line:\n\n"
        f"{numbered([_explain_line(line) for line in lines])}\n\n"
        f"For example, `{call}` returns `{result}`."
    )
    return _about("explain", f, f"{prompt}\n\n{_block(f.source(documented=False))}", answer)


ENTITIES = {
    "Person": ("name: str", "age: int", "city: str", "email: str"),
    "Book": ("title: str", "author: str", "year: int", "pages: int"),
    "Order": ("number: int", "customer: str", "total: float", "paid: bool"),
    "Point": ("x: float", "y: float", "label: str"),
    "Car": ("brand: str", "colour: str", "speed: int", "electric: bool"),
    "Song": ("title: str", "artist: str", "seconds: int"),
    "Account": ("owner: str", "balance: float", "active: bool"),
    "Task": ("title: str", "priority: int", "done: bool"),
    "City": ("name: str", "country: str", "population: int"),
}


def dataclass(rng: Random) -> Sample:
    entity = rng.choice(list(ENTITIES))
    fields = several(rng, ENTITIES[entity], 2, 4 if len(ENTITIES[entity]) > 3 else 3)
    names = [field.split(":")[0] for field in fields]
    prompt = rng.choice(
        [
            f"Write a Python dataclass {entity} with the fields {listed(names)}.",
            f"Define a dataclass for {an(entity.lower())} with {listed(names)}.",
        ]
    )
    body = "\n".join(f"    {field}" for field in fields)
    source = (
        "from dataclasses import dataclass\n\n\n@dataclass\n"
        f"class {entity}:\n"
        f'    """{an(entity.lower()).capitalize()} with {listed(names)}."""\n\n{body}'
    )
    answer = (
        f"Here is the dataclass:\n\n{_block(source)}\n\nThe fields are:\n\n"
        f"{bullets([f'`{n}` of type `{t.strip()}`' for n, t in (x.split(':') for x in fields)])}"
    )
    return dialogue("code", ("dataclass", entity, names), prompt, answer)


def plain_class(rng: Random) -> Sample:
    entity = rng.choice(list(ENTITIES))
    names = [f.split(":")[0] for f in several(rng, ENTITIES[entity], 2, 3)]
    prompt = f"Write a Python class {entity} with {listed(names)} and a method that describes it."
    sets = "\n".join(f"        self.{n} = {n}" for n in names)
    shown = ", ".join(f"{n}={{self.{n}}}" for n in names)
    source = (
        f'class {entity}:\n    """{an(entity.lower()).capitalize()} with {listed(names)}."""\n\n'
        f"    def __init__(self, {', '.join(names)}):\n{sets}\n\n"
        f'    def describe(self):\n        return f"{entity}({shown})"'
    )
    answer = (
        f"Here is the class:\n\n{_block(source)}\n\n"
        f"The method `describe` returns a string with {listed(names)}."
    )
    return dialogue("code", ("class", entity, names), prompt, answer)


TABLES = {
    "customers": ("name", "city", "age", "email"),
    "orders": ("customer", "product", "quantity", "price"),
    "books": ("title", "author", "year", "pages"),
    "employees": ("name", "salary", "age", "department"),
    "cities": ("name", "country", "population", "area"),
    "films": ("title", "director", "year", "rating"),
}
NUMERIC = ("age", "quantity", "price", "year", "pages", "salary", "population", "area", "rating")


def sql(rng: Random) -> Sample:
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    shown = several(rng, columns, 1, 3)
    number = rng.choice([c for c in columns if c in NUMERIC])
    text = rng.choice([c for c in columns if c not in NUMERIC])
    value = rng.choice([rng.randrange(10, 100, 5), rng.randrange(100, 3000, 100)])
    name = rng.choice(CITIES + NAMES)
    condition, where, meaning = rng.choice(
        [
            (f"{number} is above {value}", f"{number} > {value}", f"`{number}` above {value}"),
            (f"{number} is below {value}", f"{number} < {value}", f"`{number}` below {value}"),
            (f"{text} is {name}", f"{text} = '{name}'", f"`{text}` equal to '{name}'"),
        ]
    )
    order = rng.choice(columns)
    down = rng.random() < 0.5
    prompt = rng.choice(
        [
            f"Write a SQL query that selects {listed(shown)} from {table} where {condition}",
            f"Write SQL: {listed(shown)} of all {table} where {condition}",
        ]
    ) + (f", sorted by {order}{' in descending order' if down else ''}.")
    query = (
        f"SELECT {', '.join(shown)}\nFROM {table}\nWHERE {where}\n"
        f"ORDER BY {order}{' DESC' if down else ''};"
    )
    answer = (
        f"Here is the query:\n\n{_block(query, 'sql')}\n\n"
        f"It reads the table `{table}`, keeps the rows with {meaning}, "
        f"and sorts them by `{order}`{' in descending order' if down else ''}."
    )
    return dialogue("code", ("sql", table, shown, where, order, down), prompt, answer)


def sql_group(rng: Random) -> Sample:
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    number = rng.choice([c for c in columns if c in NUMERIC])
    text = rng.choice([c for c in columns if c not in NUMERIC])
    word, function = rng.choice(
        [("average", "AVG"), ("total", "SUM"), ("largest", "MAX"), ("smallest", "MIN")]
    )
    limit = rng.randint(2, 20)
    prompt = (
        f"Write a SQL query for the {word} {number} per {text} in {table}, "
        f"only the first {limit} rows."
    )
    query = (
        f"SELECT {text}, {function}({number}) AS {word}_{number}\nFROM {table}\n"
        f"GROUP BY {text}\nORDER BY {word}_{number} DESC\nLIMIT {limit};"
    )
    answer = (
        f"Here is the query:\n\n{_block(query, 'sql')}\n\n"
        f"It groups the table `{table}` by `{text}`, computes the {word} `{number}` of each group, "
        f"and returns the first {limit} rows."
    )
    return dialogue("code", ("group", table, number, text, function, limit), prompt, answer)


OPTIONS = {
    "input": "str", "output": "str", "count": "int", "size": "int", "name": "str",
    "seed": "int", "rate": "float", "port": "int", "host": "str", "level": "int",
}  # fmt: skip


def script(rng: Random) -> Sample:
    options = several(rng, list(OPTIONS), 2, 4)
    flags = [f"--{o}" for o in options]
    prompt = f"Write a Python script with argparse that takes {listed(flags)} and prints them."
    adds = "\n".join(
        f'    parser.add_argument("--{o}", type={OPTIONS[o]}, required=True)' for o in options
    )
    prints = "\n".join(f"    print(args.{o})" for o in options)
    source = (
        "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
        f"{adds}\n    args = parser.parse_args()\n{prints}\n\n\n"
        'if __name__ == "__main__":\n    main()'
    )
    answer = f"Here is the script:\n\n{_block(source)}\n\nIt takes the options {listed(flags)}."
    return dialogue("code", ("script", options), prompt, answer)


def loop(rng: Random) -> Sample:
    first, last, step = rng.randint(0, 20), rng.randint(25, 99), rng.randint(1, 9)
    prompt = rng.choice(
        [
            f"Write a Python loop from {first} to {last} in steps of {step}.",
            f"How do I print every number from {first} to {last} in steps of {step} in Python?",
        ]
    )
    source = f"for i in range({first}, {last + 1}, {step}):\n    print(i)"
    answer = (
        f"Use `range` with a start, an end and a step:\n\n{_block(source)}\n\n"
        f"The loop starts at {first} and goes up by {step}. The end of `range` is not included, "
        f"so we write {last + 1} to reach {last}.\n\nThe first three numbers are {first}, "
        f"{first + step} and {first + 2 * step}."
    )
    return dialogue("code", ("loop", first, last, step), prompt, answer)


GENERATORS: tuple[Generator, ...] = (
    write_function, write_function, write_function, write_of_two, add_docstring, add_types,
    rename_function, write_tests, explain, dataclass, plain_class, sql, sql_group, script, loop,
)  # fmt: skip
