"""Arithmetic with worked steps: sums, word problems, conversions, dates, equations."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from dflash_sglang.demo.sample import (
    DAYS,
    GOODS,
    MONTHS,
    NAMES,
    Generator,
    Sample,
    dialogue,
    listed,
    numbered,
)


def _sample(kind: str, slots: object, prompt: str, answer: str) -> Sample:
    return dialogue("arithmetic", (kind, slots), prompt, answer)


def running_sum(rng: Random) -> Sample:
    numbers = [rng.randint(1, 40) for _ in range(rng.randint(3, 7))]
    shown = listed([str(n) for n in numbers])
    prompt = rng.choice(
        [
            f"What is the sum of {shown}?",
            f"Add the numbers {shown}.",
            f"Add up {shown} step by step.",
        ]
    )
    steps, total = [f"Start with {numbers[0]}."], numbers[0]
    for n in numbers[1:]:
        steps.append(f"Add {n}: {total} + {n} = {total + n}.")
        total += n
    return _sample(
        "sum",
        numbers,
        prompt,
        f"Let us add the numbers one by one.\n\n{numbered(steps)}\n\nThe sum is {total}.",
    )


def column_addition(rng: Random) -> Sample:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    prompt = rng.choice(
        [
            f"Compute {a} + {b} and show the carries.",
            f"Add {a} and {b} digit by digit.",
            f"What is {a} + {b}? Show each column.",
        ]
    )
    lines, carry = [], 0
    for name, place in (("Ones", 1), ("Tens", 10), ("Hundreds", 100)):
        x, y = a // place % 10, b // place % 10
        total = x + y + carry
        lines.append(
            f"{name}: {x} + {y} + carry {carry} = {total}. Write {total % 10}, carry {total // 10}."
        )
        carry = total // 10
    return _sample(
        "column",
        (a, b),
        prompt,
        f"We add {a} and {b} column by column, from right to left.\n\n{numbered(lines)}\n\n"
        f"The last carry is {carry}. So {a} + {b} = {a + b}.",
    )


def split_product(rng: Random) -> Sample:
    a, b = rng.randint(11, 99), rng.randint(2, 9)
    tens, ones = a // 10 * 10, a % 10
    prompt = rng.choice(
        [
            f"What is {a} times {b}?",
            f"Multiply {a} by {b}. Show the steps.",
            f"Compute {a} * {b} step by step.",
        ]
    )
    answer = (
        f"We split {a} into {tens} and {ones}.\n\n"
        + numbered(
            [
                f"{tens} * {b} = {tens * b}",
                f"{ones} * {b} = {ones * b}",
                f"{tens * b} + {ones * b} = {a * b}",
            ]
        )
        + f"\n\nSo {a} * {b} = {a * b}."
    )
    return _sample("product", (a, b), prompt, answer)


def times_table(rng: Random) -> Sample:
    n, first, count = rng.randint(2, 19), rng.randint(1, 5), rng.randint(5, 10)
    last = first + count - 1
    prompt = rng.choice(
        [
            f"Write the multiplication table of {n} from {first} to {last}.",
            f"Show {n} times {first} up to {n} times {last}.",
        ]
    )
    rows = "\n".join(f"{n} * {k} = {n * k}" for k in range(first, last + 1))
    return _sample(
        "table",
        (n, first, last),
        prompt,
        f"Here is the multiplication table of {n} from {first} to {last}:\n\n{rows}",
    )


def shopping(rng: Random) -> Sample:
    name = rng.choice(NAMES)
    basket = [(g, rng.randint(2, 9), GOODS[g]) for g in rng.sample(list(GOODS), rng.randint(2, 3))]
    total = sum(k * p for _, k, p in basket)
    paid = (total // 50 + 1) * 50
    bought = listed([f"{k} {g}s at {p} coins each" for g, k, p in basket])
    prompt = f"{name} buys {bought}. " + rng.choice(
        [
            f"{name} pays with {paid} coins. How much change does {name} get?",
            f"How many coins are left from {paid} coins?",
        ]
    )
    steps = [f"{k} {g}s cost {k} * {p} = {k * p} coins." for g, k, p in basket]
    sums = " + ".join(str(k * p) for _, k, p in basket)
    steps.append(f"Together that is {sums} = {total} coins.")
    steps.append(f"The change is {paid} - {total} = {paid - total} coins.")
    return _sample(
        "shopping",
        basket,
        prompt,
        f"Let us work out what {name} has to pay.\n\n{numbered(steps)}\n\n"
        f"{name} gets {paid - total} coins back.",
    )


def sharing(rng: Random) -> Sample:
    name, thing = rng.choice(NAMES), rng.choice(["sweets", "cards", "stickers", "nuts", "coins"])
    friends, each = rng.randint(3, 9), rng.randint(2, 12)
    rest = rng.randint(0, friends - 1)
    total = friends * each + rest
    prompt = (
        f"{name} shares {total} {thing} equally among {friends} friends. "
        "How many does each friend get, and how many are left over?"
    )
    answer = (
        f"We divide {total} {thing} by {friends} friends.\n\n"
        + numbered(
            [
                f"{friends} * {each} = {friends * each}, which is not more than {total}.",
                f"{friends} * {each + 1} = {friends * (each + 1)}, which is too much.",
                f"The rest is {total} - {friends * each} = {rest}.",
            ]
        )
        + f"\n\nEach friend gets {each} {thing}, and {rest} {thing} are left over."
    )
    return _sample("sharing", (thing, total, friends), prompt, answer)


def average(rng: Random) -> Sample:
    count = rng.randint(3, 6)
    numbers = [rng.randint(2, 30) for _ in range(count - 1)]
    numbers.append(count - sum(numbers) % count)
    total, shown = sum(numbers), listed([str(n) for n in numbers])
    prompt = rng.choice([f"Find the average of {shown}.", f"What is the mean of {shown}?"])
    answer = (
        f"The average is the sum of the numbers divided by how many there are.\n\n"
        f"Sum: {' + '.join(map(str, numbers))} = {total}\n"
        f"Count: {count}\n"
        f"Average: {total} / {count} = {total // count}\n\n"
        f"The average of {shown} is {total // count}."
    )
    return _sample("average", numbers, prompt, answer)


UNITS = (
    ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("hours", "minutes", 60),
    ("minutes", "seconds", 60), ("kilograms", "grams", 1000), ("days", "hours", 24),
    ("weeks", "days", 7), ("litres", "millilitres", 1000), ("years", "months", 12),
    ("dozens", "pieces", 12), ("feet", "inches", 12), ("tonnes", "kilograms", 1000),
)  # fmt: skip


def conversion(rng: Random) -> Sample:
    large, small, factor = rng.choice(UNITS)
    n = rng.randint(2, 40)
    if rng.random() < 0.6:
        prompt = rng.choice(
            [f"Convert {n} {large} to {small}.", f"How many {small} are {n} {large}?"]
        )
        steps = [
            f"One of the {large} is {factor} {small}.",
            f"So we multiply by {factor}.",
            f"{n} * {factor} = {n * factor}",
        ]
        result = f"{n} {large} are {n * factor} {small}."
    else:
        prompt = rng.choice(
            [
                f"Convert {n * factor} {small} to {large}.",
                f"How many {large} are {n * factor} {small}?",
            ]
        )
        steps = [
            f"One of the {large} is {factor} {small}.",
            f"So we divide by {factor}.",
            f"{n * factor} / {factor} = {n}",
        ]
        result = f"{n * factor} {small} are {n} {large}."
    answer = f"To convert between {large} and {small}:\n\n{numbered(steps)}\n\n{result}"
    return _sample("conversion", (large, n), prompt, answer)


def later_date(rng: Random) -> Sample:
    start = date(rng.randint(2021, 2027), rng.randint(1, 12), rng.randint(1, 28))
    days = rng.randint(3, 60)
    end = start + timedelta(days)

    def shown(day: date) -> str:
        return f"{day.day} {MONTHS[day.month - 1]} {day.year}"

    prompt = rng.choice(
        [f"Which date is {days} days after {shown(start)}?", f"Add {days} days to {shown(start)}."]
    )
    steps, day, left = [f"We start on {shown(start)} with {days} days to add."], start, days
    while True:
        following = (day.replace(day=1) + timedelta(32)).replace(day=1)
        length = (following - day.replace(day=1)).days
        if day.day + left <= length:
            break
        step = length - day.day + 1
        steps.append(
            f"{MONTHS[day.month - 1]} has {length} days. {step} days bring us to "
            f"{shown(following)}, and {left} - {step} = {left - step} days are left."
        )
        day, left = following, left - step
    steps.append(f"{day.day} + {left} = {day.day + left}, so we end on {shown(end)}.")
    return _sample("date", (start, days), prompt, f"{numbered(steps)}\n\nThe date is {shown(end)}.")


def later_weekday(rng: Random) -> Sample:
    start, days = rng.randrange(7), rng.randint(8, 80)
    weeks, rest = divmod(days, 7)
    end = DAYS[(start + rest) % 7]
    prompt = rng.choice(
        [
            f"Today is {DAYS[start]}. Which day of the week is it in {days} days?",
            f"If today is {DAYS[start]}, what day is it {days} days from now?",
        ]
    )
    steps = [
        "A week has 7 days, so after every 7 days the weekday is the same.",
        f"{days} = {weeks} * 7 + {rest}, so {rest} days count.",
        f"From {DAYS[start]} we go {rest} days forward: "
        + ", ".join(DAYS[(start + k) % 7] for k in range(rest + 1))
        + ".",
    ]
    return _sample(
        "weekday", (start, days), prompt, f"{numbered(steps)}\n\nIn {days} days it is {end}."
    )


def clock(rng: Random) -> Sample:
    hour, minute, length = rng.randint(7, 20), rng.randrange(0, 60, 5), rng.randrange(15, 150, 5)
    what = rng.choice(["film", "meeting", "lesson", "concert", "train ride", "match"])
    h, m = divmod(length, 60)
    total = minute + m
    end = f"{hour + h + total // 60:02d}:{total % 60:02d}"
    prompt = (
        f"A {what} starts at {hour:02d}:{minute:02d} and lasts {length} minutes. When does it end?"
    )
    steps = [
        f"{length} minutes are {h} hours and {m} minutes.",
        f"{hour:02d}:{minute:02d} plus {h} hours is {hour + h:02d}:{minute:02d}.",
        f"{minute} + {m} = {total} minutes"
        + (", which is 1 hour and " + f"{total - 60} minutes." if total >= 60 else "."),
    ]
    return _sample(
        "clock", (hour, minute, length), prompt, f"{numbered(steps)}\n\nThe {what} ends at {end}."
    )


def travel(rng: Random) -> Sample:
    name, vehicle = rng.choice(NAMES), rng.choice(["train", "car", "bus", "bicycle", "boat"])
    speed, hours = rng.randrange(10, 130, 5), rng.randint(2, 9)
    way = speed * hours
    if rng.random() < 0.5:
        prompt = (
            f"{name} travels by {vehicle} at {speed} kilometres per hour for {hours} hours. "
            "How far is the way?"
        )
        answer = (
            "The way is the speed times the time.\n\n"
            f"Speed: {speed} kilometres per hour\nTime: {hours} hours\n"
            f"Way: {speed} * {hours} = {way} kilometres\n\n"
            f"{name} travels {way} kilometres by {vehicle}."
        )
    else:
        prompt = (
            f"{name} travels {way} kilometres by {vehicle} at {speed} kilometres per hour. "
            "How long does it take?"
        )
        answer = (
            "The time is the way divided by the speed.\n\n"
            f"Way: {way} kilometres\nSpeed: {speed} kilometres per hour\n"
            f"Time: {way} / {speed} = {hours} hours\n\n"
            f"{name} travels {hours} hours by {vehicle}."
        )
    return _sample("travel", (speed, hours), prompt, answer)


def rectangle(rng: Random) -> Sample:
    what = rng.choice(["garden", "room", "field", "table", "wall", "floor"])
    a, b = rng.randint(2, 25), rng.randint(2, 12)
    prompt = f"A {what} is {a} metres long and {b} metres wide. Find its area and its perimeter."
    answer = (
        f"The {what} is a rectangle with sides {a} and {b}.\n\n"
        f"Area: {a} * {b} = {a * b} square metres\n"
        f"Perimeter: 2 * ({a} + {b}) = 2 * {a + b} = {2 * (a + b)} metres\n\n"
        f"The area is {a * b} square metres and the perimeter is {2 * (a + b)} metres."
    )
    return _sample("rectangle", (what, a, b), prompt, answer)


def discount(rng: Random) -> Sample:
    good, price, percent = (
        rng.choice(["coat", "bike", "lamp", "phone", "bag", "desk", "watch", "radio"]),
        rng.randrange(20, 500, 20),
        rng.choice([5, 10, 15, 20, 25, 30, 40, 50]),
    )
    off = price * percent // 100
    prompt = (
        f"A {good} costs {price} coins. The shop takes {percent} percent off. "
        "What is the new price?"
    )
    steps = [
        f"One percent of {price} is {price} / 100 = {price / 100:g}.",
        f"{percent} percent of {price} is {percent} * {price / 100:g} = {off}.",
        f"The new price is {price} - {off} = {price - off}.",
    ]
    return _sample(
        "discount",
        (good, price, percent),
        prompt,
        f"{numbered(steps)}\n\nThe {good} now costs {price - off} coins.",
    )


def equation(rng: Random) -> Sample:
    a, x, b = rng.randint(2, 9), rng.randint(1, 15), rng.randint(1, 30)
    c = a * x + b
    letter = rng.choice("xyzn")
    prompt = rng.choice(
        [
            f"Solve {a}{letter} + {b} = {c}.",
            f"Solve the equation {a}{letter} + {b} = {c} for {letter}.",
        ]
    )
    steps = [
        f"Subtract {b} from both sides: {a}{letter} = {c} - {b} = {c - b}.",
        f"Divide both sides by {a}: {letter} = {c - b} / {a} = {x}.",
        f"Check: {a} * {x} + {b} = {a * x} + {b} = {c}.",
    ]
    return _sample(
        "equation",
        (a, x, b),
        prompt,
        f"We solve for {letter}.\n\n{numbered(steps)}\n\nThe solution is {letter} = {x}.",
    )


def sequence(rng: Random) -> Sample:
    start, step, shown = rng.randint(1, 30), rng.randint(2, 12), rng.randint(3, 5)
    terms = [start + k * step for k in range(shown + 5)]
    prompt = (
        f"Continue the sequence {', '.join(map(str, terms[:shown]))} with the next five numbers."
    )
    lines = "\n".join(f"{terms[k - 1]} + {step} = {terms[k]}" for k in range(shown, shown + 5))
    return _sample(
        "sequence",
        (start, step, shown),
        prompt,
        f"Each number is {step} more than the one before.\n\n{lines}\n\n"
        f"The next five numbers are {listed([str(t) for t in terms[shown:]])}.",
    )


GENERATORS: tuple[Generator, ...] = (
    running_sum, column_addition, split_product, times_table, shopping, sharing, average,
    conversion, later_date, later_weekday, clock, travel, rectangle, discount, equation, sequence,
)  # fmt: skip
