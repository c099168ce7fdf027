"""Prompts for self-distillation: chat requests of many kinds, in our own words, and a set that never enters training.

A training prompt is a task filled with a topic, a style or a passage, all drawn from the lists below. `HELD_OUT` is written
by hand about other things, eight prompts a category, so that what is measured on it was not trained on. The words are
Headstart's own and under its licence. Knows words only: no tokens, no models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headstart.errors import OptionError

__all__ = ["CATEGORIES", "HELD_OUT", "MOST_PROMPTS", "ChatPrompt", "training_prompts"]

MOST_PROMPTS = 12_000  # of some categories there are few more that differ

CATEGORIES = ("explain", "list", "code", "write", "edit", "chat")


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """One request a user could make."""

    category: str  # one of CATEGORIES
    text: str


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\n", "").split("|"))


_TOPICS = _split(
    """photosynthesis|the water cycle|how bridges carry weight|the Roman roads|electric cars|composting|the printing press
|jazz music|chess openings|volcanoes|the moon's phases|sourdough bread|the human heart|inflation|supply and demand
|the stock market|solar panels|wind turbines|honey bees|coral reefs|glaciers|earthquakes|the solar system|black holes
|antibiotics|vaccines|sleep|memory|learning a language|public speaking|time management|saving money|remote work
|job interviews|writing a cover letter|meditation|yoga|running a marathon|swimming|cycling to work|healthy breakfasts
|vegetarian cooking|growing tomatoes|house plants|keeping a dog|adopting a cat|bird watching|hiking in the Alps
|camping in the rain|travel on a budget|learning the guitar|the history of cinema|photography with a phone|oil painting
|origami|knitting|board games|video games|the Olympic Games|football tactics|tennis|the French Revolution
|the Silk Road|ancient Egypt|the Vikings|the Renaissance|the space race|the invention of the telephone|the steam engine
|how the internet works|how a web browser works|computer memory|binary numbers|sorting algorithms|recursion|databases
|version control|unit tests|machine learning|neural networks|cloud computing|cyber security|strong passwords|cryptography
|statistics|probability|prime numbers|fractions|geometry|the scientific method|atoms|chemical bonds|gravity|magnetism
|light and colour|sound waves|energy conservation|climate change|recycling|clean water|deserts|rain forests|rivers
|whales|penguins|dinosaurs|butterflies|spiders|mushrooms|trees in winter|the seasons|tides|clouds|maps|calendars|coins
|democracy|human rights|local government|libraries|schools in the future|team work|friendship|kindness|patience|curiosity
|tea|coffee|chocolate|spices|rice|pasta|cheese|soup|markets|trains|ships|aeroplanes|bicycles|lighthouses|castles
|museums|festivals|poetry|fables|detective novels|theatre|opera|folk tales|news writing|advertising|teaching children
|moving house|first aid|road safety|gardens in spring|small businesses|customer service|negotiation|project planning"""
)

_EXPLAIN = (
    "Explain {topic} {style}.",
    "What should everyone know about {topic}?",
    "Why does {topic} matter?",
    "How would you describe {topic} to a ten-year-old?",
    "Give a short introduction to {topic}.",
    "What are common misunderstandings about {topic}?",
    "Compare {topic} and {other}.",
    "What is the history of {topic}?",
    "I have an exam on {topic} tomorrow. Help me revise {style}.",
    "What questions would an expert ask about {topic}?",
    "Describe the main ideas behind {topic} {style}.",
    "What are the advantages and disadvantages of {topic}?",
    "Tell me something surprising about {topic}.",
    "How has {topic} changed over the last hundred years?",
)
_LIST = (
    "List {count} facts about {topic}.",
    "Give me {count} tips about {topic}, one per line.",
    "Name {count} books or films that deal with {topic} and say why.",
    "Write a step-by-step guide for beginners in {topic}.",
    "Make a table with two columns about {topic}: term and meaning.",
    "What are the {count} most important words to know about {topic}? Define each.",
    "Make a weekly plan for someone who wants to learn about {topic}.",
    "Give {count} ideas for a school project on {topic}.",
    "Write {count} quiz questions about {topic} with answers.",
    "Make a checklist for {topic}.",
    "Write {count} discussion questions on {topic}.",
)
_WRITE = (
    "Write a short story about {topic}.",
    "Write a poem about {topic} {style}.",
    "Write a paragraph that begins with a question about {topic}.",
    "Write a letter to a friend about {topic}.",
    "Write a polite email to {person} about {topic}.",
    "Write an opening for a speech on {topic} for {person}.",
    "Write a product description for something to do with {topic}.",
    "Write a dialogue between {person} and {person2} about {topic}.",
    "Write a blog post about {topic} {style}.",
    "Write a news report about {topic}.",
    "Tell a bedtime story in which {person} discovers {topic}.",
    "Write a short essay on {topic} with an introduction and a conclusion.",
    "Describe a morning in the life of {person} who loves {topic}.",
)
_CHAT = (
    "Hi! I am {person} and I would like to know more about {topic}. Where do I start?",
    "I feel nervous about {topic}. What can I do?",
    "Can you recommend something to read about {topic}?",
    "My friend says that {topic} is boring. What could I answer?",
    "What is your opinion on {topic}?",
    "I have {count} minutes. Teach me something about {topic}.",
    "How do I explain {topic} to {person}?",
    "Is it hard to learn about {topic}?",
    "What is the difference between {topic} and {other}?",
    "Help me to plan a day around {topic} for {person}.",
    "Thank you for your help with {topic}. What should I look at next?",
)
_CODE = (
    "Write a {language} function that {job}.",
    "Write a {language} program that {job}. Add comments.",
    "Show me how to write {language} code that {job}, and explain it.",
    "How do I test a {language} function that {job}?",
    "Write a {language} class for {thing} with methods to add, remove and list them.",
    "Write a {language} script that reads a file of {things} and prints a summary.",
    "What is wrong with a {language} function that {job} if the input is empty? Show a corrected version.",
    "Write a SQL query that finds all {things} created in the last {count} days.",
    "Write an HTML page that shows a list of {things}.",
    "Write a JSON document that describes {count} {things}.",
    "Write a regular expression that matches the name of {thing}, and explain each part.",
    "Write a README for a {language} library that {job}.",
    "Explain how a program that {job} works, step by step, then write it in {language}.",
)
_EDIT = (
    "Summarise this text in one sentence: {passage}",
    "Rewrite this text {style}: {passage}",
    "Correct any mistakes in this text and print it again: {passage}",
    "Make this text shorter: {passage}",
    "Turn this text into a list of bullet points: {passage}",
    "Translate this text into {tongue}: {passage}",
    "Give this text a title and print it again with the title: {passage}",
    "What are the main points of this text? {passage}",
    "Continue this text with two more sentences: {passage}",
    "Rewrite this text as an email to {person}: {passage}",
    "Write three questions that this text answers: {passage}",
)
_STYLES = (
    "in simple words",
    "in three sentences",
    "with an example",
    "for a beginner",
    "for an expert",
    "with a comparison from daily life",
    "in a friendly tone",
    "in a formal tone",
    "with bullet points",
    "in about a hundred words",
    "as a numbered list",
    "with some humour",
    "step by step",
)
_PERSONS = _split(
    "a teacher|a nurse|an engineer|my manager|a neighbour|a new student|my grandmother|a farmer|a pilot|a shop owner|a librarian|"
    "a chef|a child of eight|a retired sailor|a city planner|a young artist|a football coach|a scientist|a lawyer|a tourist"
)
_LANGUAGES = ("Python", "Python", "Python", "JavaScript", "C", "Java", "Rust", "Go", "C++", "TypeScript", "Bash", "Ruby")
_JOBS = _split(
    "reverses a string|counts the words of a text|finds the largest number in a list|checks whether a number is prime|"
    "computes the factorial of a number|sorts a list of names|merges two sorted lists|removes duplicates from a list|"
    "converts temperatures|parses a date|reads a CSV file|writes a log file|downloads a page|computes the average of numbers|"
    "finds the shortest path in a grid|searches in a sorted list|validates an email address|generates a random password|"
    "counts the vowels in a sentence|prints a multiplication table|turns a number into Roman numerals|flattens a nested list|"
    "implements a stack|implements a queue|implements a linked list|computes Fibonacci numbers|splits a text into sentences|"
    "finds all files with a given ending|measures how long a function takes|groups items by a key|transposes a matrix|"
    "checks whether a text is a palindrome|finds the most common word|rounds prices|draws a triangle of stars|caches results"
)
_THINGS = _split("books|users|orders|songs|recipes|tickets|rooms|students|cars|photos|messages|plants|invoices|cities|games")
_TONGUES = ("French", "Spanish", "German", "Italian", "Portuguese")
_SENTENCES = (
    "{Topic} has fascinated people for a long time.",
    "Many beginners find {topic} confusing at first.",
    "Last year our town held a fair about {topic}.",
    "The best way to understand {topic} is to try it.",
    "Some experts believe that {topic} will change in the coming years.",
    "My neighbour spends every weekend on {topic}.",
    "There are good books about {topic} in the library.",
    "It takes patience, but the result is worth it.",
    "Not everybody agrees, and that is fine.",
    "The costs were higher than we had expected.",
    "We met in the morning and talked until noon.",
    "The weather was cold, so we stayed inside.",
    "In the end, everyone had learned something new.",
    "A small mistake at the start can cause trouble later.",
    "First we made a plan, then we collected what we needed.",
    "The children asked many questions, and nobody could answer all of them.",
    "Prices rose by four percent, while wages stayed the same.",
    "The meeting is moved to Thursday at ten o'clock in the small hall.",
    "Please bring your notes and a pen.",
    "She opened the old box and found a letter inside.",
)
_TASKS = {"explain": _EXPLAIN, "list": _LIST, "code": _CODE, "write": _WRITE, "edit": _EDIT, "chat": _CHAT}


def training_prompts(count: int, seed: int) -> list[ChatPrompt]:
    """`count` prompts, all different, the same for the same seed; categories take turns. A longer list begins with a shorter one.

    Raises OptionError for more than the lists can make."""
    if not 0 <= count <= MOST_PROMPTS:
        raise OptionError(f"`count` must be from 0 to {MOST_PROMPTS}, got {count}; bring prompts of your own with --data FILE")
    generator = np.random.default_rng(seed)
    seen = {prompt.text for prompt in HELD_OUT}
    prompts: list[ChatPrompt] = []
    while len(prompts) < count:
        category = CATEGORIES[len(prompts) % len(CATEGORIES)]
        text = _filled(_pick(generator, _TASKS[category]), generator)
        if text not in seen:
            seen.add(text)
            prompts.append(ChatPrompt(category=category, text=text))
    return prompts


def _filled(task: str, generator: np.random.Generator) -> str:
    topic = _pick(generator, _TOPICS)
    thing = _pick(generator, _THINGS)
    return task.format(
        topic=topic,
        other=_pick(generator, _TOPICS),
        style=_pick(generator, _STYLES),
        count=int(generator.integers(3, 11)),
        person=_pick(generator, _PERSONS),
        person2=_pick(generator, _PERSONS),
        language=_pick(generator, _LANGUAGES),
        job=_pick(generator, _JOBS),
        thing=thing,
        things=thing,
        tongue=_pick(generator, _TONGUES),
        passage=_passage(topic, generator) if "{passage}" in task else "",
    )


def _passage(topic: str, generator: np.random.Generator) -> str:
    """Two to five sentences, the first ones about the topic."""
    places = np.sort(generator.choice(len(_SENTENCES), size=int(generator.integers(2, 6)), replace=False))
    return " ".join(_SENTENCES[int(i)].format(topic=topic, Topic=topic[0].upper() + topic[1:]) for i in places)


def _pick(generator: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(generator.integers(len(choices)))]


_HELD_OUT = {
    "explain": (
        "Explain how a refrigerator keeps food cold.",
        "Why do leaves change colour in autumn?",
        "How does a compass find north?",
        "What causes thunder and lightning?",
        "Explain the difference between a virus and a bacterium.",
        "How do noise-cancelling headphones work?",
        "What is a black market, and why does one appear?",
        "Explain to me how a hash map works.",
    ),
    "list": (
        "List eight things to check before renting a flat.",
        "Give me five exercises I can do at my desk.",
        "Name six inventions that came from Asia and what they are used for.",
        "Make a packing list for a week at the seaside.",
        "What are the steps of changing a bicycle tyre?",
        "Give me ten names for a bakery, one per line.",
        "List the planets and one fact about each.",
        "Write a five-day menu for a family that eats no meat.",
    ),
    "code": (
        "Write a Python function that parses a CSV line with quoted fields.",
        "Write a binary search tree in Python with insert and find.",
        "Write a JavaScript function that debounces another function.",
        "Write a C program that counts the lines of a file.",
        "Write a SQL query that shows the ten customers who spent the most.",
        "Write a Bash script that renames all .jpeg files to .jpg.",
        "Write a Python generator that yields the primes.",
        "Write a small HTML form with a name, an email address and a button.",
    ),
    "write": (
        "Write a short story about a clock that runs backwards.",
        "Write a four-line poem about an empty railway station.",
        "Write an email to my landlord about a broken heating.",
        "Write a dialogue between a baker and a customer who is in a hurry.",
        "Write a toast for my sister's wedding.",
        "Describe a storm at sea in one paragraph.",
        "Write a fairy tale about a fox who could not lie.",
        "Write a review of a restaurant that was good but slow.",
    ),
    "edit": (
        "Summarise in two sentences: The old mill by the river closed in 1968. For years nobody cared for it. Then a group of "
        "young people bought it, repaired the wheel and now they make flour again and sell bread on Saturdays.",
        "Correct the mistakes and print the text again: Yesterday I have went to the shop and buyed two bread. The man there "
        "were very friendly and he give me a apple for free.",
        "Turn this into bullet points: To enter the building you need a badge. Badges are handed out at the desk from eight to "
        "five. Visitors must sign the book. Bags larger than a backpack are not allowed.",
        "Make this more polite: Send me the report today. You are late again and I am tired of waiting.",
        "Rewrite in the past tense: Every morning she walks to the lake, sits on the bench and feeds the ducks. The ducks know "
        "her and come at once.",
        "Give this text a title: Three engineers spent a winter in a hut to find out why the snow there never melts. What they "
        "found was a stream of cold air from a cave.",
        "Translate into Spanish: The train leaves at seven and we must not be late.",
        "What is the main idea of this text? A library that lends tools saves its members money, and the tools, which would lie "
        "in a cellar most of the year, are used every day.",
    ),
    "chat": (
        "I cannot sleep before exams. What helps?",
        "My plant has yellow leaves. What am I doing wrong?",
        "Should I learn the piano or the violin as an adult?",
        "I burned the bottom of my favourite pot. How do I clean it?",
        "What would you cook for six guests who arrive in an hour?",
        "My colleague takes credit for my work. How do I bring it up?",
        "I want to visit Portugal in spring. What should I see?",
        "How do I ask for a higher salary?",
    ),
}
HELD_OUT = tuple(ChatPrompt(category=category, text=text) for category, texts in _HELD_OUT.items() for text in texts)
