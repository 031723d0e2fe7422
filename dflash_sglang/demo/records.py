"""JSON: extraction from text, conversion, editing, filtering, schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from dflash_sglang.demo.sample import (
    CITIES,
    GOODS,
    MONTHS,
    NAMES,
    SURNAMES,
    Generator,
    Sample,
    an,
    dialogue,
    listed,
    several,
)

Record = dict[str, Any]


def _block(value: object) -> str:
    return f"```json\n{json.dumps(value, indent=2)}\n```"


def _sample(kind: str, slots: object, prompt: str, answer: object) -> Sample:
    return dialogue("json", (kind, slots), prompt, _block(answer))


JOBS = ("teacher", "doctor", "baker", "engineer", "nurse", "pilot", "farmer", "writer", "painter")
HOBBIES = ("chess", "tennis", "reading", "cooking", "cycling", "music", "hiking", "painting")
TITLES = (
    "The Red House", "A Long Way", "Silent River", "The Last Train", "Winter Light",
    "Seven Bridges", "The Old Garden", "Night Music", "Blue Mountain", "The Paper Boat",
)  # fmt: skip
GENRES = ("novel", "poetry", "history", "science", "travel", "fantasy")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "grey")


def person(rng: Random) -> Record:
    name, surname = rng.choice(NAMES), rng.choice(SURNAMES)
    return {
        "name": f"{name} {surname}",
        "age": rng.randint(18, 80),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
        "email": f"{name.lower()}.{surname.lower()}@example.com",
    }


def book(rng: Random) -> Record:
    return {
        "title": rng.choice(TITLES),
        "author": f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}",
        "year": rng.randint(1950, 2024),
        "genre": rng.choice(GENRES),
        "pages": rng.randrange(80, 600, 10),
    }


def product(rng: Random) -> Record:
    good = rng.choice(list(GOODS))
    return {
        "id": rng.randint(100, 999),
        "product": good,
        "colour": rng.choice(COLOURS),
        "price": GOODS[good],
        "in_stock": rng.random() < 0.5,
    }


def city(rng: Random) -> Record:
    return {
        "city": rng.choice(CITIES),
        "temperature": rng.randint(-5, 35),
        "humidity": rng.randrange(20, 100, 5),
        "condition": rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy"]),
        "wind": rng.randint(0, 60),
    }


RECORDS: dict[str, Callable[[Random], Record]] = {
    "person": person,
    "book": book,
    "product": product,
    "weather report": city,
}


def extract_person(rng: Random) -> Sample:
    record = person(rng)
    record["hobbies"] = several(rng, HOBBIES, 1, 3)
    text = (
        f"{record['name']} is {record['age']} years old and lives in {record['city']}. "
        f"The {record['job']} likes {listed(record['hobbies'])} and can be reached at "
        f"{record['email']}."
    )
    ask = rng.choice(
        ["Extract the person as JSON:", "Turn this text into a JSON record:", "Return JSON for:"]
    )
    return _sample("person", record, f"{ask} {text}", record)


def extract_order(rng: Random) -> Sample:
    name = rng.choice(NAMES)
    items = [
        {"item": g, "quantity": rng.randint(1, 9), "price": GOODS[g]}
        for g in several(rng, list(GOODS), 1, 4)
    ]
    number = rng.randint(1000, 9999)
    bought = listed([f"{i['quantity']} x {i['item']} at {i['price']} coins" for i in items])
    prompt = f"Extract the order as JSON: Order {number} by {name}: {bought}."
    return _sample(
        "order", (number, items), prompt, {"order": number, "customer": name, "items": items}
    )


def extract_meeting(rng: Random) -> Sample:
    topic = rng.choice(["budget", "design", "release", "training", "holiday plan", "report"])
    people = several(rng, NAMES, 2, 4)
    day, month = rng.randint(1, 28), rng.randrange(12)
    hour, length = rng.randint(8, 17), rng.choice([15, 30, 45, 60, 90])
    room = f"{rng.choice('ABCD')}{rng.randint(1, 40)}"
    prompt = (
        f"Extract the meeting as JSON: {listed(people)} meet on {day} {MONTHS[month]} at {hour}:00 "
        f"in room {room} to talk about the {topic}. The meeting takes {length} minutes."
    )
    answer = {
        "topic": topic,
        "date": {"day": day, "month": month + 1},
        "start": f"{hour:02d}:00",
        "minutes": length,
        "room": room,
        "people": people,
    }
    return _sample("meeting", answer, prompt, answer)


def make_record(rng: Random) -> Sample:
    kind = rng.choice(list(RECORDS))
    record = RECORDS[kind](rng)
    fields = ", ".join(
        f"{k} {str(v).lower() if v in (True, False) else v}" for k, v in record.items()
    )
    ask = rng.choice([f"Write a JSON record of {an(kind)}", f"Give me a {kind} as JSON"])
    return _sample("make", record, f"{ask} with {fields}.", record)


def from_csv(rng: Random) -> Sample:
    make = RECORDS[rng.choice(list(RECORDS))]
    rows = [make(rng) for _ in range(rng.randint(2, 3))]
    fields = list(rows[0])[: rng.randint(3, 5)]
    rows = [{f: row[f] for f in fields} for row in rows]
    table = "\n".join(
        [",".join(fields)] + [",".join(json.dumps(v).strip('"') for v in r.values()) for r in rows]
    )
    ask = rng.choice(["Convert this CSV to JSON:", "Write this CSV table as a JSON list:"])
    return _sample("csv", rows, f"{ask}\n\n{table}", rows)


def from_lines(rng: Random) -> Sample:
    record = RECORDS[rng.choice(list(RECORDS))](rng)
    lines = "\n".join(f"{k}: {json.dumps(v).strip(chr(34))}" for k, v in record.items())
    ask = rng.choice(["Convert this YAML to JSON:", "Write these settings as JSON:"])
    return _sample("yaml", record, f"{ask}\n\n{lines}", record)


def set_field(rng: Random) -> Sample:
    kind = rng.choice(list(RECORDS))
    record, other = RECORDS[kind](rng), RECORDS[kind](rng)
    field = rng.choice(list(record))
    change = rng.choice(["set", "remove"])
    edited = dict(record)
    if change == "set":
        edited[field] = other[field]
        ask = f"Set {field} to {json.dumps(other[field])} in this JSON:"
    else:
        del edited[field]
        ask = f"Remove {field} from this JSON:"
    return _sample(change, (record, edited), f"{ask}\n\n{_block(record)}", edited)


def keep_fields(rng: Random) -> Sample:
    record = RECORDS[rng.choice(list(RECORDS))](rng)
    kept = [f for f in record if rng.random() < 0.6] or list(record)[:2]
    prompt = f"Keep only {listed(kept)} of this JSON:\n\n{_block(record)}"
    return _sample("keep", (record, kept), prompt, {f: record[f] for f in kept})


def filter_list(rng: Random) -> Sample:
    rows: list[Record] = [
        {"name": n, "score": rng.randint(10, 99)} for n in several(rng, NAMES, 3, 5)
    ]
    limit = rng.randrange(20, 90, 10)
    kept = [row for row in rows if row["score"] > limit]
    prompt = f"Return the entries with a score above {limit}:\n\n{json.dumps(rows)}"
    return _sample("filter", (rows, limit), prompt, kept)


TYPES = {str: "string", int: "integer", bool: "boolean"}


def schema(rng: Random) -> Sample:
    kind = rng.choice(list(RECORDS))
    record = RECORDS[kind](rng)
    fields = [f for f in record if rng.random() < 0.8] or list(record)
    types = {f: {"type": TYPES[type(record[f])]} for f in fields}
    required = [f for f in fields if rng.random() < 0.7] or fields[:1]
    described = listed([f"{f} ({types[f]['type']})" for f in fields])
    prompt = f"Write a JSON schema for a {kind} with {described}. Required: {listed(required)}."
    answer = {"title": kind, "type": "object", "properties": types, "required": required}
    return _sample("schema", answer, prompt, answer)


def server_config(rng: Random) -> Sample:
    name = rng.choice(["web", "api", "mail", "cache", "search", "file"])
    answer: Record = {
        "name": f"{name}-server",
        "host": f"10.0.{rng.randint(0, 9)}.{rng.randint(1, 99)}",
        "port": rng.randrange(3000, 9900, 100),
        "debug": rng.random() < 0.5,
        "workers": rng.choice([1, 2, 4, 8, 16]),
        "log": {"level": rng.choice(["info", "debug", "error"]), "file": f"/var/log/{name}.log"},
    }
    prompt = (
        f"Write a JSON configuration for {an(name)} server on {answer['host']} "
        f"port {answer['port']} with {answer['workers']} workers, "
        f"debug {'on' if answer['debug'] else 'off'}, and log level {answer['log']['level']}."
    )
    return _sample("config", answer, prompt, answer)


def count_words(rng: Random) -> Sample:
    words = [rng.choice(rng.sample(COLOURS, 4)) for _ in range(rng.randint(5, 9))]
    counts = {w: words.count(w) for w in sorted(set(words))}
    prompt = f"Count each word and return JSON: {' '.join(words)}"
    return _sample("count", words, prompt, {"total": len(words), "counts": counts})


GENERATORS: tuple[Generator, ...] = (
    extract_person, extract_order, extract_meeting, make_record, from_csv, from_lines, set_field,
    keep_fields, filter_list, schema, server_config, count_words,
)  # fmt: skip
