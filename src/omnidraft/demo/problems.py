"""Word problems for the demonstration, made from templates written for it: as many as a run can answer, all different.

Their numbers come out whole and positive.  Every twenty in a row hold each template once, so that figures of any two
such windows compare like with like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

PEOPLE = (  # with the pronouns
    *(
        ("she", "her", name)
        for name in ("Ada", "Bea", "Carla", "Dora", "Elif", "Flora", "Greta", "Hana", "Ines", "Jana")
    ),
    *(
        ("he", "his", name)
        for name in ("Abel", "Boris", "Carlo", "Dario", "Emil", "Felix", "Goran", "Hugo", "Ivo", "Jonas")
    ),
)
THINGS = ("marbles", "stamps", "shells", "stickers", "postcards", "buttons", "pebbles", "coins", "badges", "beads")
FRUIT = ("apples", "pears", "plums", "peaches", "lemons", "cherries", "oranges", "figs")
Choices = Sequence[int] | Sequence[str]


class Template(NamedTuple):
    """A problem with fields, and what may stand in them; names and pronouns come of themselves."""

    text: str
    choices: dict[str, Choices]


TEMPLATES = (
    Template(
        "{name} bakes {a} trays of rolls with {b} rolls on each tray. {She} sells {c} rolls and gives half of the rest "
        "to {her} neighbors. How many rolls does {she} keep?",
        {"a": range(5, 13), "b": range(12, 31, 2), "c": range(10, 51, 2)},
    ),
    Template(
        "A library has {a} shelves with {b} books on each of them. On Monday {c} books are lent and {d} books come "
        "back. How many books are on the shelves on Monday evening?",
        {"a": range(6, 30), "b": range(20, 60), "c": range(40, 90), "d": range(10, 40)},
    ),
    Template(
        "{name} earns ${a} an hour for the first 8 hours of a day and ${b} more for every hour after that. How much "
        "does {she} earn on a day of {c} hours?",
        {"a": range(11, 30), "b": range(2, 9), "c": range(9, 14)},
    ),
    Template(
        "A train has {a} cars with {b} seats each. In every car {c} seats are taken. How many seats of the train are "
        "free?",
        {"a": range(4, 15), "b": range(40, 81), "c": range(11, 38)},
    ),
    Template(
        "{name} has {a} {things}. {other} has {b} times as many {things} as {name}, and {third} has {c} fewer than "
        "{other}. How many {things} do the three have together?",
        {"a": range(12, 40), "b": range(2, 6), "c": range(3, 20), "things": THINGS},
    ),
    Template(
        "A tank holds {a} liters of water. A hose adds {b} liters every minute, and a leak loses {c} liters every "
        "minute. How many liters are in the tank after {d} minutes?",
        {"a": range(50, 200, 5), "b": range(8, 20), "c": range(2, 7), "d": range(5, 25)},
    ),
    Template(
        "Tickets for a play cost ${a} for adults and ${b} for children. A group of {c} adults and {d} children has "
        "$200. How much money is left when they have bought their tickets?",
        {"a": range(12, 21), "b": range(4, 11), "c": range(2, 5), "d": range(3, 9)},
    ),
    Template(
        "The book of {name} has {b} pages. {She} has already read {c} pages, and every evening {she} reads {a} more. "
        "How many pages are left after {d} evenings?",
        {"a": range(11, 25), "b": range(260, 480, 10), "c": range(20, 80), "d": range(3, 8)},
    ),
    Template(
        "A baker has {a} bags with {b} kilograms of flour in each. For a cake she needs 2 kilograms, and for a loaf "
        "1 kilogram. How much flour is left after {c} cakes and {d} loaves?",
        {"a": range(6, 12), "b": range(10, 26, 5), "c": range(5, 15), "d": range(8, 25)},
    ),
    Template(
        "{name} cycles {a} minutes to work and as long back home, on {b} days of every week. How many hours does {she} "
        "cycle in {c} weeks?",
        {"a": (15, 30, 45), "b": (2, 4, 6), "c": range(3, 30)},
    ),
    Template(
        "A farmer has {a} hens, and each hen lays {b} eggs a week. He packs the eggs in boxes of 12 and sells every "
        "box for ${c}. How much does he earn in {d} weeks?",
        {"a": range(12, 73, 12), "b": range(4, 8), "c": range(3, 8), "d": range(2, 9)},
    ),
    Template(
        "{name} buys {a} notebooks for ${b} each and {c} pens for ${d} each. {She} pays with a $100 bill. How much "
        "change does {she} get?",
        {"a": range(3, 8), "b": range(3, 8), "c": range(4, 12), "d": range(1, 5)},
    ),
    Template(
        "A parking lot has {a} rows of {b} spaces. A quarter of the spaces are for buses and {c} are closed. How many "
        "spaces are left for cars?",
        {"a": range(8, 25, 4), "b": range(15, 40), "c": range(5, 40)},
    ),
    Template(
        "A school has {a} students. {b}% of them come by bus, {c} students cycle and all others walk. How many "
        "students walk to school?",
        {"a": range(300, 1300, 100), "b": range(10, 70, 10), "c": range(15, 80)},
    ),
    Template(
        "{name} is {a} years old. {Her} father is {b} times as old as {name}, and {her} grandmother is {c} years older "
        "than {her} father. How old is the grandmother in {d} years?",
        {"a": range(7, 13), "b": range(3, 5), "c": range(20, 33), "d": range(2, 13)},
    ),
    Template(
        "{name} plants {a} tulips on Saturday and twice as many on Sunday. A storm breaks {b} of them, and {she} sells "
        "the others for ${c} each. How much money does {she} get?",
        {"a": range(20, 60), "b": range(5, 30), "c": range(2, 6)},
    ),
    Template(
        "Each of {a} machines makes {b} toys an hour. After {c} hours a worker finds that {d} of the toys are broken. "
        "How many good toys are there?",
        {"a": range(3, 12), "b": range(12, 50), "c": range(4, 10), "d": range(6, 60)},
    ),
    Template(
        "{name} saves ${a} every week, and {other} saves ${b} more than {name}. After {c} weeks they buy a tent "
        "together for ${d}. How much money do they have left?",
        {"a": range(12, 30), "b": range(3, 15), "c": range(6, 13), "d": range(60, 140, 5)},
    ),
    Template(
        "A truck carries {a} crates of {fruit} that weigh {b} kilograms each and {c} crates that weigh {d} kilograms "
        "each. At the first stop {e} of the heavier crates are unloaded. How many kilograms are still on the truck?",
        {
            "a": range(10, 30),
            "b": range(8, 16),
            "c": range(9, 20),
            "d": range(18, 31),
            "e": range(2, 9),
            "fruit": FRUIT,
        },
    ),
    Template(
        "{name} has a rope of {a} meters. {She} cuts off {b} pieces of {c} meters each and gives half of what is left "
        "to {other}. How many meters of rope does {she} keep?",
        {"a": range(40, 90, 2), "b": range(3, 9), "c": (2, 4)},
    ),
)


def prompts(seed: int) -> Iterator[str]:
    """Different problems without an end, the same ones for the same seed."""
    random = np.random.default_rng(seed)
    seen = set()
    while True:
        for template in TEMPLATES:
            problem = _filled(template, random)
            while problem in seen:
                problem = _filled(template, random)
            seen.add(problem)
            yield f"Question: {problem}\nAnswer:"


def _filled(template: Template, random: np.random.Generator) -> str:
    fields: dict[str, object] = {name: its[int(random.integers(len(its)))] for name, its in template.choices.items()}
    (she, her, name), (_, _, other), (_, _, third) = (
        PEOPLE[int(index)] for index in random.choice(len(PEOPLE), 3, replace=False)
    )
    people = {
        "name": name,
        "other": other,
        "third": third,
        "she": she,
        "She": she.title(),
        "her": her,
        "Her": her.title(),
    }
    return template.text.format(**fields, **people)
