"""Small sets of texts that need no files: `requests` of 20 intents, and `chatter` that is none."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import torch

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_int

LENGTH = 16  # tokens of a row, so that both sets have rows of one shape

# intents by domain; each of a pattern's words in braces is drawn from its list
INTENTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "kitchen": {
        "recipe": ("how do i cook {dish}", "give me a recipe for {dish}",
                   "what goes into {dish}{please}", "i want to make {dish} {day}"),
        "table": ("book a table for {number} {day}", "reserve dinner for {number} people {day}",
                  "i need a table {day}{please}", "can we eat out {day} with {number}"),
        "groceries": ("put {food} on the list", "add {food} to my groceries{please}",
                      "we ran out of {food}", "buy {number} packs of {food}"),
        "calories": ("how many calories are in {food}", "is {food} healthy",
                     "does {food} make me fat", "calories of {number} plates of {dish}"),
        "delivery": ("order {dish} to my home", "have {dish} delivered {day}{please}",
                     "send me {number} times {dish}", "i am hungry, get me {dish}"),
    },
    "travel": {
        "flight": ("find a flight to {city} {day}", "fly me to {city}{please}",
                   "{number} plane tickets to {city}", "when does the plane to {city} leave"),
        "hotel": ("i need a room in {city}", "book a hotel in {city} for {number} nights",
                  "where can i sleep in {city} {day}", "find me a cheap bed in {city}{please}"),
        "weather": ("will it rain in {city} {day}", "how warm is it in {city}",
                    "do i need an umbrella {day}", "weather in {city} {day}{please}"),
        "luggage": ("how many bags may i take to {city}", "my suitcase was lost in {city}",
                    "can i carry {number} bags", "what may be in my suitcase{please}"),
        "translation": ("how do you say {food} in {language}", "translate {food} to {language}",
                        "what is {language} for {food}", "say thank you in {language}{please}"),
    },
    "money": {
        "balance": ("how much is in my account", "what is my balance{please}",
                    "do i have more than {number} euros left", "show me the account {day}"),
        "transfer": ("send {number} euros to {person}", "transfer money to {person} {day}",
                     "pay {person} what i owe{please}", "move {number} euros to savings"),
        "card": ("my card was stolen", "block my card{please}",
                 "i lost my card in {city}", "somebody has taken my card {day}"),
        "taxes": ("when are taxes due", "help me with my tax form{please}",
                  "how much tax do i pay on {number} euros", "did {person} file my taxes"),
        "bill": ("when is the electricity bill due", "pay the phone bill {day}{please}",
                 "how high is the bill for gas", "is there a bill from {person}"),
    },
    "home": {
        "music": ("play something by {person}", "put on some music{please}",
                  "next song{please}", "turn on the radio {day}"),
        "lights": ("switch off the lamp in the {room}", "make it brighter in the {room}",
                   "lights on in the {room}{please}", "it is too dark in the {room}"),
        "alarm": ("wake me at {number} {day}", "set an alarm for {number}{please}",
                  "do not let me sleep beyond {number}", "cancel my alarm {day}"),
        "reminder": ("remind me to call {person} {day}", "do not let me forget {food}",
                     "what did i want to remember {day}", "remind me of {person}{please}"),
        "heating": ("it is too cold in the {room}", "set the {room} to {number} degrees",
                    "turn down the heating in the {room}{please}", "heat the {room} {day}"),
    },
}  # fmt: skip
SMALL_TALK = (
    "the {animal} looked at {person} for a while", "nobody in {city} knows the {animal}",
    "{person} once wrote a book about {language} poets", "in winter the river is {colour}",
    "a {colour} {animal} crossed the bridge", "her brother has painted the fence {colour}",
    "they say that {person} never learnt {language}", "the {animal} is older than its master",
    "who would have thought that of {person}", "my uncle saw a {colour} {animal} near {city}",
)  # fmt: skip
MOST_DRAWS, MOST_SLOTS = 5, 4  # draws for each text wanted, words in a pattern
WORDS: Mapping[str, tuple[str, ...]] = {
    "opening": ("", "", "hey, ", "well, ", "so ", "hello, ", "tell me, ", "one more thing: "),
    "dish": ("lasagna", "curry", "pancakes", "onion soup", "dumplings", "fried rice", "apple pie"),
    "food": ("milk", "eggs", "bread", "tomatoes", "cheese", "bananas", "coffee", "rice"),
    "number": ("two", "three", "four", "five", "six", "seven", "eight", "ten"),
    "day": ("today", "tomorrow", "tonight", "on monday", "on friday", "at the weekend"),
    "please": ("", "", " please", " now"),
    "city": ("paris", "rome", "oslo", "lisbon", "vienna", "tokyo", "cairo", "lima"),
    "language": ("french", "spanish", "german", "polish", "greek", "turkish"),
    "person": ("anna", "tom", "maria", "paul", "my sister", "the landlord", "grandfather"),
    "room": ("kitchen", "bathroom", "bedroom", "hall", "cellar", "office"),
    "animal": ("horse", "cat", "owl", "fox", "donkey", "goose"),
    "colour": ("green", "white", "grey", "yellow", "brown"),
}


def requests(
    *, per_class: int = 60, tokenizer: Any = "words", length: int = LENGTH, seed: int = 0
) -> Data:
    """Requests of 20 intents, five in each of four domains, made from patterns.

    Each intent has four patterns; every fifth request is for testing. The attribute ``domain``
    says to which domain an intent belongs.

    Parameters
    ----------
    per_class
        Requests of each intent.
    tokenizer, length
        As for `Data.from_text`.

    Examples
    --------
    >>> data = requests(per_class=10)
    >>> data, data.texts[0]
    (Data('requests': 160 train, 40 test rows of (16,), 20 classes), ...)
    """
    check_int("per_class", per_class, low=5)
    key = keys.fold(check_int("seed", seed), "requests")
    texts, labels, domains = [], [], []
    for number, (_, intents) in enumerate(INTENTS.items()):
        for intent, patterns in intents.items():
            texts += _fill_patterns(patterns, keys.fold(key, intent), per_class)
            labels += [intent] * per_class
            domains += [number] * per_class
    return Data.from_text(
        texts, labels, tokenizer=tokenizer, length=length, name="requests",
        attributes={"domain": torch.tensor(domains)},
        attribute_names={"domain": tuple(INTENTS)},
    )  # fmt: skip


def chatter(
    *, rows: int = 300, tokenizer: Any = "words", length: int = LENGTH, seed: int = 0
) -> Data:
    """Sentences that are no request: the outside set of `requests`.

    Examples
    --------
    >>> chatter(rows=50)
    Data('chatter': 40 train, 10 test rows of (16,), 1 class)
    """
    check_int("rows", rows, low=5)
    key = keys.fold(check_int("seed", seed), "chatter")
    texts = _fill_patterns(SMALL_TALK, key, rows)
    return Data.from_text(
        texts, ["chatter"] * rows, tokenizer=tokenizer, length=length, name="chatter"
    )


def _fill_patterns(patterns: tuple[str, ...], key: keys.Key, count: int) -> list[str]:
    """Different texts from patterns in turn, with words drawn by number and place."""
    found: dict[str, None] = {}
    for number in range(MOST_DRAWS * count):
        pattern = patterns[number % len(patterns)]
        text, drawn = "", keys.randint(keys.fold(key, number), 1 << 16, MOST_SLOTS).tolist()
        for before, slot, _, _ in string.Formatter().parse(f"{{opening}}{pattern}"):
            text += before
            if slot:
                text += WORDS[slot][drawn.pop() % len(WORDS[slot])]
        found.setdefault(text)
        if len(found) == count:
            return list(found)
    raise bad("per_class", f"at most the {len(found)} texts that its patterns can make", count)
