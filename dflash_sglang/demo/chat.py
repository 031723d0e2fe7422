"""Chat: facts, comparisons, how-to lists, letters, summaries, small translations, stories."""

from __future__ import annotations

from random import Random

from dflash_sglang.demo.facts import (
    ANIMALS,
    COUNTRIES,
    ELEMENTS,
    LANGUAGES,
    PHRASES,
    PLANETS,
    RECIPES,
    SKILLS,
    TRIPS,
)
from dflash_sglang.demo.sample import (
    CITIES,
    DAYS,
    MONTHS,
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


def _sample(kind: str, slots: object, *turns: str) -> Sample:
    return dialogue("chat", (kind, slots), *turns)


def country(rng: Random) -> Sample:
    name = rng.choice(list(COUNTRIES))
    c = COUNTRIES[name]
    facts = {
        "capital": f"The capital of {name} is {c.capital}.",
        "continent": f"{name} lies in {c.continent}.",
        "language": f"People there speak {c.language}.",
        "currency": f"The currency is the {c.currency}.",
        "food": f"A well known dish is {c.food}.",
    }
    asked = several(rng, list(facts), 2, 5)
    prompt = rng.choice(
        [
            f"Tell me the {listed(asked)} of {name}.",
            f"What are the {listed(asked)} of {name}?",
            f"I want to know the {listed(asked)} of {name}.",
        ]
    )
    answer = (
        f"Here is what you asked about {name}.\n\n{bullets([facts[a] for a in asked])}\n\n"
        f"If you visit {name}, {c.capital} is a good place to start."
    )
    return _sample("country", (name, sorted(asked)), prompt, answer)


def two_countries(rng: Random) -> Sample:
    a, b = rng.sample(list(COUNTRIES), 2)
    x, y = COUNTRIES[a], COUNTRIES[b]
    prompt = rng.choice([f"Compare {a} and {b}.", f"What is the difference between {a} and {b}?"])
    answer = (
        f"Here is a short comparison of {a} and {b}.\n\n"
        f"- Capital: {x.capital} in {a}, {y.capital} in {b}.\n"
        f"- Continent: {a} lies in {x.continent}, {b} lies in {y.continent}.\n"
        f"- Language: {x.language} in {a}, {y.language} in {b}.\n"
        f"- Currency: the {x.currency} in {a}, the {y.currency} in {b}.\n\n"
    )
    same = "the same continent" if x.continent == y.continent else "different continents"
    return _sample("countries", (a, b), prompt, f"{answer}So the two countries are on {same}.")


def capital_talk(rng: Random) -> Sample:
    a, b = rng.sample(list(COUNTRIES), 2)
    x, y = COUNTRIES[a], COUNTRIES[b]
    return _sample(
        "talk",
        (a, b),
        f"What is the capital of {a}?",
        f"The capital of {a} is {x.capital}. {a} lies in {x.continent}.",
        f"And of {b}?",
        f"The capital of {b} is {y.capital}. {b} lies in {y.continent}, people there speak "
        f"{y.language}, and the currency is the {y.currency}.",
    )


def animal(rng: Random) -> Sample:
    name = rng.choice(list(ANIMALS))
    a = ANIMALS[name]
    who = rng.choice(["a child", "a pupil", "a friend", "my class", "a beginner", "a visitor"])
    prompt = rng.choice(
        [
            f"Describe the {name} for {who}.",
            f"What should {who} know about the {name}?",
            f"Explain to {who} what {an(name)} is.",
        ]
    )
    answer = (
        f"{an(name).capitalize()} is {an(a.kind)}. It lives in {a.home} and eats {a.food}. "
        f"{an(name).capitalize()} has {a.legs} legs, and it can {a.skill}. "
        f"Its young is called {an(a.young)}.\n\nIn short:\n\n"
        f"- Kind: {a.kind}\n- Home: {a.home}\n- Food: {a.food}\n- Legs: {a.legs}"
    )
    return _sample("animal", (name, who), prompt, answer)


def two_animals(rng: Random) -> Sample:
    a, b = rng.sample(list(ANIMALS), 2)
    x, y = ANIMALS[a], ANIMALS[b]
    prompt = rng.choice([f"Compare {an(a)} and {an(b)}.", f"How does {an(a)} differ from {an(b)}?"])
    verdict = "of the same kind" if x.kind == y.kind else "of different kinds"
    answer = (
        f"{an(a).capitalize()} is {an(x.kind)}, and {an(b)} is {an(y.kind)}.\n\n"
        f"- Home: {an(a)} lives in {x.home}, {an(b)} lives in {y.home}.\n"
        f"- Food: {an(a)} eats {x.food}, {an(b)} eats {y.food}.\n"
        f"- Legs: {an(a)} has {x.legs} legs, {an(b)} has {y.legs} legs.\n\n"
        f"So the two animals are {verdict}."
    )
    return _sample("animals", (a, b), prompt, answer)


def planet(rng: Random) -> Sample:
    name = rng.choice(list(PLANETS))
    p = PLANETS[name]
    facts = {
        "place": f"{name} is planet number {p.place} from the Sun.",
        "kind": f"{name} is a {p.kind}.",
        "moons": f"It has {p.moons}.",
        "year": f"A year on {name} lasts {p.year}.",
        "look": f"It looks {p.look}.",
    }
    asked = several(rng, list(facts), 2, 4)
    prompt = rng.choice(
        [
            f"Tell me about {name}: {listed(asked)}.",
            f"Facts about the planet {name}, please: {listed(asked)}.",
        ]
    )
    answer = (
        f"Here are facts about {name}:\n\n{numbered([facts[a] for a in asked])}\n\n"
        f"{name} is one of the eight planets that go around the Sun. Before it there are "
        f"{p.place - 1} planets, and after it there are {8 - p.place}."
    )
    return _sample("planet", (name, sorted(asked)), prompt, answer)


def element(rng: Random) -> Sample:
    a, b = rng.sample(list(ELEMENTS), 2)

    def told(name: str) -> str:
        e = ELEMENTS[name]
        return (
            f"{name} has the symbol {e.symbol} and the atomic number {e.number}. "
            f"It is a {e.kind}, and it is used in {e.use}."
        )

    prompt = rng.choice([f"Tell me about {a} and {b}.", f"What are {a.lower()} and {b.lower()}?"])
    answer = f"{a} and {b} are chemical elements.\n\n- {told(a)}\n- {told(b)}"
    return _sample("elements", (a, b), prompt, answer)


def recipe(rng: Random) -> Sample:
    name = rng.choice(list(RECIPES))
    r = RECIPES[name]
    people, extra = rng.randint(1, 8), rng.choice(r.extras)
    prompt = rng.choice(
        [
            f"How do I make {name} with {extra} for {people} people?",
            f"Give me a recipe for {name} with {extra} for {people}.",
            f"Explain how to make {name} with {extra} for {people} guests.",
        ]
    )
    needs = [f"{people * k} {what}" for k, what in r.needs] + [f"some {extra}"]
    steps = [*r.steps, f"Add the {extra} at the end and serve it to {people}."]
    answer = (
        f"To make {name} with {extra} for {people}, you need:\n\n{bullets(needs)}\n\n"
        f"Then follow these steps:\n\n{numbered(steps)}\n\nEnjoy your {name}!"
    )
    return _sample("recipe", (name, people, extra), prompt, answer)


def skill(rng: Random) -> Sample:
    name = rng.choice(list(SKILLS))
    weeks, day = rng.randint(2, 9), rng.choice(DAYS)
    minutes = rng.randrange(15, 95, 5)
    prompt = rng.choice(
        [
            f"Make a plan for learning {name} in {weeks} weeks, {minutes} minutes each {day}.",
            f"How can I learn {name} in {weeks} weeks with {minutes} minutes every {day}?",
        ]
    )
    steps = SKILLS[name]
    answer = (
        f"Here is a plan for learning {name} in {weeks} weeks. "
        f"Use {minutes} minutes every {day}.\n\n{numbered(steps)}\n\n"
        f"After {weeks} weeks you will have practised for {weeks * minutes} minutes. Good luck!"
    )
    return _sample("skill", (name, weeks, minutes), prompt, answer)


def packing(rng: Random) -> Sample:
    trip = rng.choice(list(TRIPS))
    days, where = rng.randint(2, 14), rng.choice(CITIES)
    prompt = rng.choice(
        [
            f"What should I pack for a {trip} trip to {where} of {days} days?",
            f"Write a packing list for {days} days of {trip} in {where}.",
        ]
    )
    things = [f"{days} shirts", f"{days} pairs of socks", "a toothbrush", *TRIPS[trip]]
    answer = (
        f"For a {trip} trip of {days} days to {where}, you should pack:\n\n{bullets(things)}\n\n"
        f"Check the weather in {where} before you leave. Have a good trip!"
    )
    return _sample("packing", (trip, days, where), prompt, answer)


def letter(rng: Random) -> Sample:
    sender, reader = rng.sample(NAMES, 2)
    day, hour = rng.choice(DAYS), rng.randint(8, 18)
    place = rng.choice(
        ["the office", "the library", "the park", "the station", "the cafe", "my house"]
    )
    occasion, reason = rng.choice(
        [
            ("dinner", "I would like to have dinner with you"),
            ("a meeting", "I would like to talk about our project"),
            ("a birthday party", "I would like to celebrate my birthday with you"),
            ("a walk", "I would like to go for a walk with you"),
            ("lunch", "I would like to have lunch with you"),
            ("a game of chess", "I would like to play chess with you"),
        ]
    )
    prompt = rng.choice(
        [
            f"Write a short email from {sender} that invites {reader} to {occasion} on {day} "
            f"at {hour}:00 at {place}.",
            f"Invite {reader} to {occasion} on {day} at {hour}:00 at {place}. I am {sender}.",
        ]
    )
    answer = (
        f"Subject: Invitation to {occasion}\n\nDear {reader},\n\nI hope you are well. {reason}. "
        f"Could we meet on {day} at {hour}:00 at {place}? Please let me know whether this works "
        f"for you. If not, we can find another time.\n\nBest wishes,\n{sender}"
    )
    return _sample("letter", (sender, reader, day, hour, place, occasion), prompt, answer)


def thanks(rng: Random) -> Sample:
    sender, reader = rng.sample(NAMES, 2)
    gift = rng.choice(["book", "scarf", "lamp", "plant", "cake", "ticket", "picture", "clock"])
    occasion = rng.choice(["my birthday", "the wedding", "my new house", "my exam", "the holidays"])
    prompt = f"Write a thank you note from {sender} to {reader} for the {gift} for {occasion}."
    answer = (
        f"Dear {reader},\n\nThank you very much for the {gift} that you gave me for {occasion}. "
        f"It was very kind of you. The {gift} is beautiful, and I think of you whenever I see it. "
        f"I hope that we will see each other soon.\n\nWith many thanks,\n{sender}"
    )
    return _sample("thanks", (sender, reader, gift, occasion), prompt, answer)


def summary(rng: Random) -> Sample:
    a, b = rng.sample(NAMES, 2)
    where, month = rng.choice(CITIES), rng.choice(MONTHS)
    goal, done, cost = (
        rng.choice(["school", "museum", "library", "hospital", "bridge", "market"]),
        rng.choice(["opened", "repaired", "painted", "closed", "rebuilt", "extended"]),
        rng.randrange(10, 100, 5),
    )
    prompt = (
        f"Summarize this report in short points: In {month}, the {goal} in {where} was {done}. "
        f"{a} led the work, which cost {cost} thousand coins. {b} said that people in {where} had "
        f"waited for this for a long time and that the {goal} is important for the whole city."
    )
    answer = (
        "Here is a summary:\n\n"
        + bullets(
            [
                f"What: the {goal} was {done}.",
                f"Where: in {where}.",
                f"When: in {month}.",
                f"Who: {a} led the work.",
                f"Cost: {cost} thousand coins.",
                f"Opinion: {b} said that the {goal} is important for the whole city.",
            ]
        )
        + f"\n\nIn one sentence: in {month}, the {goal} in {where} was {done} for "
        f"{cost} thousand coins under {a}."
    )
    return _sample("summary", (a, b, where, month, goal, done, cost), prompt, answer)


def translate(rng: Random) -> Sample:
    language = rng.choice(LANGUAGES)
    chosen = several(rng, list(PHRASES), 3, 6)
    prompt = rng.choice(
        [
            f"Translate to {language}: {', '.join(chosen)}.",
            f"How do you say {listed(chosen)} in {language}?",
        ]
    )
    index = LANGUAGES.index(language)
    lines = [f'"{p}" is "{PHRASES[p][index]}".' for p in chosen]
    answer = f"Here are the words in {language}:\n\n{bullets(lines)}"
    return _sample("translate", (language, chosen), prompt, answer)


def alphabetical(rng: Random) -> Sample:
    words = several(rng, [*ANIMALS, *PHRASES], 4, 7)
    prompt = f"Sort these words alphabetically: {', '.join(words)}."
    ordered = sorted(words)
    answer = (
        f"In alphabetical order the words are:\n\n{numbered(ordered)}\n\n"
        f"The first word is {ordered[0]} and the last word is {ordered[-1]}."
    )
    return _sample("sort", words, prompt, answer)


def story(rng: Random) -> Sample:
    name, hero = rng.choice(NAMES), rng.choice(list(ANIMALS))
    friend = rng.choice([a for a in ANIMALS if a != hero])
    thing = rng.choice(["key", "map", "golden coin", "blue stone", "lost letter", "silver bell"])
    h, f = ANIMALS[hero], ANIMALS[friend]
    prompt = rng.choice(
        [
            f"Tell a short story about {an(hero)} called {name} who finds a {thing} "
            f"and meets {an(friend)}.",
            f"Write a short story: {name} the {hero} finds a {thing} and meets {an(friend)}.",
        ]
    )
    answer = (
        f"Once upon a time there was {an(hero)} called {name}. {name} lived in {h.home} and "
        f'liked to eat {h.food}. One day {name} found a {thing}. "Whose {thing} is this?" '
        f"asked {name}.\n\n"
        f'Then {name} met {an(friend)} who lived in {f.home}. "That is my {thing}," said the '
        f'{friend}. "I lost it a long time ago." {name} gave the {thing} back, and the {friend} '
        f"was very happy.\n\nFrom that day on, {name} and the {friend} were good friends. The end."
    )
    return _sample("story", (name, hero, friend, thing), prompt, answer)


def day_plan(rng: Random) -> Sample:
    where, start = rng.choice(CITIES), rng.randint(7, 10)
    acts = several(
        rng,
        ["visit a museum", "walk in the park", "have lunch", "see the old town", "go shopping",
         "take a boat tour", "drink coffee", "climb the tower", "visit the market", "see a film"],
        3, 6,
    )  # fmt: skip
    prompt = f"Plan a day in {where} from {start}:00 on. I want to {listed(acts)}."
    lines = [f"{start + 2 * i}:00 - {start + 2 * i + 2}:00: {act}" for i, act in enumerate(acts)]
    answer = (
        f"Here is a plan for your day in {where}:\n\n{bullets(lines)}\n\n"
        f"Your day in {where} ends at {start + 2 * len(acts)}:00. Have fun!"
    )
    return _sample("day", (where, start, acts), prompt, answer)


def introduction(rng: Random) -> Sample:
    name = rng.choice(NAMES)
    prompt = rng.choice(
        [
            f"Hello, my name is {name}. Who are you?",
            f"Hi! I am {name}. What can you do?",
            f"Good morning, I am {name}. Can you help me?",
        ]
    )
    answer = (
        f"Hello {name}, nice to meet you! I am a small language model. I can help you with:\n\n"
        "- writing short Python functions,\n- working out sums step by step,\n"
        "- making and reading JSON,\n- answering simple questions.\n\nWhat would you like to do?"
    )
    return _sample("hello", name, prompt, answer)


GENERATORS: tuple[Generator, ...] = (
    country, two_countries, capital_talk, animal, two_animals, planet, element, recipe, skill,
    packing, letter, thanks, summary, translate, alphabetical, story, day_plan, introduction,
)  # fmt: skip
