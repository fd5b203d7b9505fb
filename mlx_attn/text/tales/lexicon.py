"""The words of the tales: people, places, things, animals, food, numbers and what can be said of them."""

from mlx_attn.text.tales.words import AGREEMENT, COUNTING, Lexicon, Word

_HE = {"he": "he", "He": "He", "him": "him", "his": "his", "His": "His"}
_SHE = {"he": "she", "He": "She", "him": "her", "his": "her", "His": "Her"}
_IT = {"it": "it", "was": "was", "is": "is"}
_THEY = {"it": "they", "was": "were", "is": "are"}
_AGREEING = dict.fromkeys([*_HE, *_IT, "a_", "A_"], AGREEMENT)


def _articles(text: str) -> dict[str, str]:
    """With its article (`a`, `A` at the start of a sentence) and the article alone (`a_`, `A_`)."""
    article = "an" if text[0] in "aeiou" else "a"
    return {
        "a": f"{article} {text}",
        "A": f"{article.capitalize()} {text}",
        "a_": article,
        "A_": article.capitalize(),
    }


def _singular(texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, {**_articles(text), **_IT}) for text in texts.split())


def _plural(texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, _THEY) for text in texts.split())


def _people(names: str, pronouns: dict[str, str]) -> tuple[Word, ...]:
    return tuple(Word(name, pronouns) for name in names.split())


def _places(preposition: str, texts: str) -> tuple[Word, ...]:
    """Places; the form `at` is the place with its preposition."""
    return tuple(Word(text, {"at": f"{preposition} the {text}"}) for text in texts.split())


def _number(value: int, text: str, ordinal: str) -> Word:
    words = ["one", "two", "three", "four", "five", "six", "seven"][:value]
    counted = ", ".join(words).capitalize()
    was = "was" if value == 1 else "were"
    return Word(text, {"was": was, "ordinal": ordinal, "counted": counted}, value=value)


PEOPLE = Lexicon(
    (
        *_people("Anna Lily Mia Rosa Nell Zoe Ivy Ruth Clara Dora", _SHE),
        *_people("Tom Ben Sam Max Leo Finn Hugo Jack Oscar Peter", _HE),
    ),
    _AGREEING,
)
PLACES = Lexicon(
    (
        *_places("in the".removesuffix(" the"), "garden forest meadow orchard barn park"),
        *_places("at", "harbor market mill castle school"),
        *_places("by", "river lake pond"),
        *_places("on", "hill beach"),
    )
)
_TREASURES = _singular(
    "kite drum boat bell lantern map key button whistle ball umbrella spoon scarf cup hat mirror clock flute ribbon book"
)
TREASURES = Lexicon(_TREASURES, _AGREEING)
THINGS = Lexicon((*_TREASURES, *_plural("mittens boots marbles skates crayons beads")), _AGREEING)
QUALITIES = Lexicon(
    _singular(
        "red blue green yellow orange purple white pink silver golden old tiny shiny striped odd big pretty plain spotted ugly"
    ),
    _AGREEING,
)
ANIMALS = Lexicon(
    _singular(
        "owl otter fox hen goat mouse frog rabbit robin hedgehog duck cat pony ant squirrel badger"
    ),
    _AGREEING,
)
MOODS = Lexicon(
    _singular(
        "kind sleepy clever gentle shy funny wise grumpy proud hungry eager lonely cheerful anxious young old"
    ),
    _AGREEING,
)
TEXTURES = Lexicon(
    _singular("mossy crooked broken tall dusty leafy narrow wide muddy ancient empty low"),
    _AGREEING,
)
LANDMARKS = Lexicon(
    _singular("wall tree bench gate fence stone log bush cart well barrel statue ladder haystack"),
    _AGREEING,
)
WEATHERS = Lexicon(
    _singular("sunny windy rainy snowy foggy chilly bright quiet warm misty frosty icy"), _AGREEING
)
HOURS = Lexicon(_singular("morning afternoon evening day"), _AGREEING)
FOODS = Lexicon(
    tuple(
        Word(text)
        for text in "apples plums pears buns cookies eggs cherries carrots peaches muffins nuts figs".split()
    )
)
SKILLS = Lexicon(
    tuple(
        Word(text)
        for text in "swim whistle dance juggle skate sing climb paint knit bake dive sew".split()
    )
)
NUMBERS = Lexicon(
    (
        _number(1, "one", "first"),
        _number(2, "two", "second"),
        _number(3, "three", "third"),
        _number(4, "four", "fourth"),
        _number(5, "five", "fifth"),
        _number(6, "six", "sixth"),
        _number(7, "seven", "seventh"),
    ),
    {"was": AGREEMENT, "ordinal": COUNTING, "counted": COUNTING},
)
