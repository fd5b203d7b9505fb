"""The words of the tales: people, places, things, animals, food, numbers and their forms."""

from mlx_attn.text.tales.words import AGREEMENT, COUNTING, Lexicon, Word

_HE = {"he": "he", "He": "He", "him": "him", "his": "his", "His": "His"}
_SHE = {"he": "she", "He": "She", "him": "her", "his": "her", "His": "Her"}
_IT = {"was": "was", "is": "is", "it": "it"}
_THEY = {"was": "were", "is": "are", "it": "they"}
_AGREEING = dict.fromkeys([*_HE, *_IT, "a_", "A_"], AGREEMENT)


def _articles(text: str) -> dict[str, str]:
    """With its article (`a`, and `A` to begin a sentence), and the article alone (`a_`, `A_`)."""
    article = "an" if text[0] in "aeiou" else "a"
    whole = {"a": f"{article} {text}", "A": f"{article.capitalize()} {text}"}
    return {**whole, "a_": article, "A_": article.capitalize()}


def _plain(texts: str) -> tuple[Word, ...]:
    return tuple(Word(text) for text in texts.split())


def _singular(texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, {**_articles(text), **_IT}) for text in texts.split())


def _plural(texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, _THEY) for text in texts.split())


def _people(names: str, pronouns: dict[str, str]) -> tuple[Word, ...]:
    return tuple(Word(name, pronouns) for name in names.split())


def _places(preposition: str, texts: str) -> tuple[Word, ...]:
    """Places; the form `at` is the place with its preposition."""
    return tuple(Word(text, {"at": f"{preposition} the {text}"}) for text in texts.split())


def _numbers(texts: str, ordinals: str) -> tuple[Word, ...]:
    """The numbers from one; the form `counted` counts up to them."""
    words = texts.split()
    return tuple(
        Word(
            word,
            {
                "was": "was" if value == 1 else "were",
                "ordinal": ordinal,
                "counted": ", ".join(words[:value]).capitalize(),
            },
            value=value,
        )
        for value, (word, ordinal) in enumerate(zip(words, ordinals.split(), strict=True), 1)
    )


PEOPLE = Lexicon(
    (
        *_people("Anna Lily Mia Rosa Nell Zoe Ivy Ruth Clara Dora", _SHE),
        *_people("Tom Ben Sam Max Leo Finn Hugo Jack Oscar Peter", _HE),
    ),
    _AGREEING,
)
PLACES = Lexicon(
    (
        *_places("in", "garden forest meadow orchard barn park"),
        *_places("at", "harbor market mill castle"),
        *_places("by", "river lake pond"),
        *_places("on", "hill beach island"),
    )
)
BELONGINGS = Lexicon(
    _singular("hat scarf umbrella apron coat cloak ribbon shawl cap belt purse fan"), _AGREEING
)
HUES = Lexicon(
    _singular("red blue green yellow orange purple white pink gray brown black violet"), _AGREEING
)
TREASURES = Lexicon(
    _singular(
        "kite drum boat bell lantern map key button whistle ball spoon cup mirror clock flute book"
    ),
    _AGREEING,
)
THINGS = Lexicon(
    (*TREASURES.words, *_plural("marbles skates beads shells")),
    _AGREEING,
)
QUALITIES = Lexicon(
    _singular(
        "silver golden old tiny shiny striped odd big pretty plain spotted ugly wooden lucky round"
        " painted"
    ),
    _AGREEING,
)
ANIMALS = Lexicon(
    _singular(
        "owl otter fox hen goat mouse frog rabbit robin hedgehog duck cat pony ant swan badger"
    ),
    _AGREEING,
)
MOODS = Lexicon(
    _singular("hungry eager lonely sleepy grumpy funny lazy noisy thin fat anxious lost"),
    _AGREEING,
)
TRAITS = Lexicon(
    _plain("clever gentle shy wise brave patient young quiet kind curious proud merry")
)
TEXTURES = Lexicon(
    _singular("mossy crooked tall dusty wide muddy ancient huge leaning narrow low broken"),
    _AGREEING,
)
LANDMARKS = Lexicon(
    _singular("wall tree bench gate fence stone log bush cart barrel statue ladder hedge shed"),
    _AGREEING,
)
WEATHERS = Lexicon(
    _singular("sunny windy rainy snowy foggy chilly bright warm misty frosty icy mild"), _AGREEING
)
HOURS = Lexicon(_singular("morning afternoon evening day"), _AGREEING)
NEAR = Lexicon(_plain("behind beside near under"))
FEELINGS = Lexicon(_plain("happy glad proud merry tired warm hungry sleepy"))
FOODS = Lexicon(_plain("apples plums pears buns cookies eggs cherries carrots peaches nuts"))
SKILLS = Lexicon(_plain("swim juggle skate climb knit dive fish ride sew row"))
NUMBERS = Lexicon(
    _numbers("one two three four five six seven", "first second third fourth fifth sixth seventh"),
    {"was": AGREEMENT, "ordinal": COUNTING, "counted": COUNTING},
)
