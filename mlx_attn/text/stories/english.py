"""The words and plots of the stories: people, places, animals, things, food and numbers."""

from mlx_attn.text.stories import grammar

_HE = {"he": "he", "He": "He", "him": "him", "his": "his", "His": "His"}
_SHE = {"he": "she", "He": "She", "him": "her", "his": "her", "His": "Her"}
_IT = {"was": "was", "is": "is", "it": "it"}
_THEY = {"was": "were", "is": "are", "it": "they"}
_AGREEING = dict.fromkeys([*_HE, *_IT, "a_", "A_"], grammar.AGREEMENT)


def _articles(text: str) -> dict[str, str]:
    """With its article (`a`, and `A` to begin a sentence), and the article alone (`a_`, `A_`)."""
    article = "an" if text[0] in "aeiou" else "a"
    whole = {"a": f"{article} {text}", "A": f"{article.capitalize()} {text}"}
    return {**whole, "a_": article, "A_": article.capitalize()}


def _plain(texts: str) -> tuple[grammar.Word, ...]:
    return tuple(grammar.Word(text) for text in texts.split())


def _singular(texts: str) -> tuple[grammar.Word, ...]:
    return tuple(grammar.Word(text, {**_articles(text), **_IT}) for text in texts.split())


def _plural(texts: str) -> tuple[grammar.Word, ...]:
    return tuple(grammar.Word(text, _THEY) for text in texts.split())


def _people(names: str, pronouns: dict[str, str]) -> tuple[grammar.Word, ...]:
    return tuple(grammar.Word(name, pronouns) for name in names.split())


def _places(preposition: str, texts: str) -> tuple[grammar.Word, ...]:
    """Places; the form `at` is the place with its preposition."""
    return tuple(grammar.Word(text, {"at": f"{preposition} the {text}"}) for text in texts.split())


def _numbers(texts: str, ordinals: str) -> tuple[grammar.Word, ...]:
    """The numbers from one; the form `counted` counts up to them."""
    words = texts.split()
    return tuple(
        grammar.Word(
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


PEOPLE = grammar.Lexicon(
    (
        *_people("Anna Lily Mia Rosa Nell Zoe Ivy Ruth Clara Dora", _SHE),
        *_people("Tom Ben Sam Max Leo Finn Hugo Jack Oscar Peter", _HE),
    ),
    _AGREEING,
)
PLACES = grammar.Lexicon(
    (
        *_places("in", "garden forest meadow orchard barn park"),
        *_places("at", "harbor market mill castle"),
        *_places("by", "river lake pond"),
        *_places("on", "hill beach island"),
    )
)
_BELONGINGS = grammar.Lexicon(
    _singular("hat scarf umbrella apron coat cloak ribbon shawl cap belt purse fan"), _AGREEING
)
_HUES = grammar.Lexicon(
    _singular("red blue green yellow orange purple white pink gray brown black violet"), _AGREEING
)
_TREASURES = grammar.Lexicon(
    _singular(
        "kite drum boat bell lantern map key button whistle ball spoon cup mirror clock flute book"
    ),
    _AGREEING,
)
_THINGS = grammar.Lexicon(
    (*_TREASURES.words, *_plural("marbles skates beads shells")),
    _AGREEING,
)
_QUALITIES = grammar.Lexicon(
    _singular(
        "silver golden old tiny shiny striped odd big pretty plain spotted ugly wooden lucky round"
        " painted"
    ),
    _AGREEING,
)
_ANIMALS = grammar.Lexicon(
    _singular(
        "owl otter fox hen goat mouse frog rabbit robin hedgehog duck cat pony ant swan badger"
    ),
    _AGREEING,
)
_MOODS = grammar.Lexicon(
    _singular("hungry eager lonely sleepy grumpy funny lazy noisy thin fat anxious lost"),
    _AGREEING,
)
_TRAITS = grammar.Lexicon(
    _plain("clever gentle shy wise brave patient young quiet kind curious proud merry")
)
_TEXTURES = grammar.Lexicon(
    _singular("mossy crooked tall dusty wide muddy ancient huge leaning narrow low broken"),
    _AGREEING,
)
_LANDMARKS = grammar.Lexicon(
    _singular("wall tree bench gate fence stone log bush cart barrel statue ladder hedge shed"),
    _AGREEING,
)
_WEATHERS = grammar.Lexicon(
    _singular("sunny windy rainy snowy foggy chilly bright warm misty frosty icy mild"), _AGREEING
)
_HOURS = grammar.Lexicon(_singular("morning afternoon evening day"), _AGREEING)
_NEAR = grammar.Lexicon(_plain("behind beside near under"))
_FEELINGS = grammar.Lexicon(_plain("happy glad proud merry tired warm hungry sleepy"))
_FOODS = grammar.Lexicon(
    _plain("apples plums pears buns cookies eggs cherries carrots peaches nuts")
)
_SKILLS = grammar.Lexicon(_plain("swim juggle skate climb knit dive fish ride sew row"))
NUMBERS = grammar.Lexicon(
    _numbers("one two three four five six seven", "first second third fourth fifth sixth seventh"),
    {"was": grammar.AGREEMENT, "ordinal": grammar.COUNTING, "counted": grammar.COUNTING},
)


def _between(least: int, most: int) -> grammar.Variable:
    return grammar.Variable(NUMBERS, (), lambda word: least <= word.value <= most)


def _leaving(total: str, least: int) -> grammar.Variable:
    """A number to take away from a total so that at least so many are left."""
    return grammar.Variable(
        NUMBERS, (total,), lambda word, whole: word.value <= whole.value - least, grammar.COUNTING
    )


def _difference(total: str, taken: str) -> grammar.Variable:
    def left(word: grammar.Word, whole: grammar.Word, part: grammar.Word) -> bool:
        return word.value == whole.value - part.value

    return grammar.Variable(NUMBERS, (total, taken), left, grammar.COUNTING)


VARIABLES = {
    "weather": grammar.Variable(_WEATHERS),
    "hour": grammar.Variable(_HOURS),
    "place": grammar.Variable(PLACES),
    "trait": grammar.Variable(_TRAITS),
    "hero": grammar.Variable(PEOPLE),
    "friend_trait": grammar.unlike(_TRAITS, "trait"),
    "friend": grammar.unlike(PEOPLE, "hero"),
    "hue": grammar.Variable(_HUES),
    "carried": grammar.Variable(_BELONGINGS),
    "hue2": grammar.unlike(_HUES, "hue"),
    "quality": grammar.Variable(_QUALITIES),
    "thing": grammar.Variable(_THINGS),
    "treasure": grammar.Variable(_TREASURES),
    "quality2": grammar.unlike(_QUALITIES, "quality"),
    "treasure2": grammar.unlike(_TREASURES, "thing", "treasure"),
    "quality3": grammar.unlike(_QUALITIES, "quality", "quality2"),
    "treasure3": grammar.unlike(_TREASURES, "treasure", "treasure2"),
    "mood": grammar.Variable(_MOODS),
    "animal": grammar.Variable(_ANIMALS),
    "near": grammar.Variable(_NEAR),
    "texture": grammar.Variable(_TEXTURES),
    "landmark": grammar.Variable(_LANDMARKS),
    "near2": grammar.Variable(_NEAR),
    "texture2": grammar.unlike(_TEXTURES, "texture"),
    "landmark2": grammar.unlike(_LANDMARKS, "landmark"),
    "food": grammar.Variable(_FOODS),
    "skill": grammar.Variable(_SKILLS),
    "total": _between(4, 7),
    "given": _leaving("total", 2),
    "left": _difference("total", "given"),
    "given2": _leaving("left", 1),
    "left2": _difference("left", "given2"),
    "feeling": grammar.Variable(_FEELINGS),
    "feeling2": grammar.unlike(_FEELINGS, "feeling"),
    "count": _between(3, 6),
}

_WORDS = {
    "doing": """walking | playing | singing | resting | dancing | sitting | reading | waiting
        | daydreaming | whistling | painting | sketching | yawning | thinking""",
    "walked": """walked | ran | skipped | hurried | wandered | marched | strolled | danced
        | hopped | rushed""",
    "searched": "looked | searched | peeked | peered | hunted",
    "saw": "saw | found | noticed | spotted | discovered",
    "said": "2 * said | cried | whispered | called | murmured | sang | sighed",
    "asked": "asked | wondered | inquired",
    "manner": """shyly | eagerly | slowly | kindly | sweetly | gently | calmly | bravely
        | brightly | warmly | proudly | patiently | gladly | wisely""",
    "soon": "Soon | Then | Next | Later | Just then | After a while",
    "bag": "basket | bag | bowl | cart | box",
    "tasty": "sweet | ripe | fresh | warm | small",
    "hope": "want to | must | hope to | wish I could | long to | have to",
    "like": "like | love | admire | adore | want | envy",
    "told": "told | asked | begged",
    "starved": "hungry | tired | cold | sad | lonely | little",
    "pulled": "pulled | pushed | dug | tugged | helped | worked",
    "never": "never | hardly | not | surely never",
    "long": "want | wish | hope | long",
    "later": "Days later | The next day | A week later | Before long",
}

_SENTENCES = {
    "beginning": """
        2 * One {new weather} {new hour}, {new trait} {new hero} was <doing> {new place.at}
            with {a new hue} {new carried}.
        | On {a new weather} {new hour}, {new trait} {new hero} <walked> to the {new place}
            with {a new hue} {new carried}.
    """,
    "meeting": "<soon> {a new mood} {new animal} <walked> by.",
    "question": """
        "Who has the {hue} {carried} now?" it <asked>. "{friend} has," <said> {hero}.
        | "Who had the {hue} {carried} first?" it <asked>. "{hero} had," <said> {friend}.
    """,
    "home": """
        Then {hero} <walked> home with {hero.his} {hue} {carried}, {new feeling} and {new feeling2}.
        | So ended that {weather} {hour} {place.at}, and {hero} kept {hero.his} {hue} {carried}.
        | That night {hero} dreamed of the {animal}, the {place} and {hero.his} {hue} {carried}.
        | Look for {hero} and {hero.his} {hue} {carried} {place.at}, on {a weather} {hour}.
    """,
}

_PLOTS = {
    "lost": """
        Oh no! {hero} had lost {hero.his} {new quality} {new thing}.
        "[wish: I <hope> find my {quality} {thing}]," {hero.he} <said> <manner>.
        {hero} <searched> {new near} {a new texture} {new landmark}, but <saw> only
        {a new quality2} {new treasure2}.
        <meeting> "Did you say, '{wish}'?" <asked> the {animal}.
        {hero} and the {animal} <searched> {new near2} {a new texture2} {new landmark2},
        and there {thing.was} the {quality} {thing}! <home>
    """,
    "share": """
        There were {new total} <tasty> {new food} in {hero.his} <bag>.
        <meeting> "[plea: I am <starved>, and I love {food}]," <said> the {animal} <manner>.
        {hero} gave the {animal} {new given}, so {new left} {left.was} left.
        Then {new friend_trait} {new friend} <walked> by, and {hero} gave {friend.him} {new given2},
        so {new left2} {left2.was} left.
        "I said, '{plea},' and you gave me {given}," <said> the {animal}. <home>
    """,
    "promise": """
        Suddenly {a new mood} {new animal} <said>,
        "Help! I am stuck {new near} {a new texture} {new landmark}!"
        {hero} <pulled> until the {animal} was free.
        "[promise: I will bring you {a new quality} {new treasure}]," <said> the {animal} <manner>.
        <later> the {animal} came back. "I said, '{promise},' and here it is."
        "What {a quality} {treasure}!" <said> {hero} <manner>. <home>
    """,
    "swap": """
        Beside {hero.him} sat {new friend_trait} {new friend} with {a new quality} {new treasure}.
        "[praise: I <like> your {hue} {carried}]," <said> {friend} <manner>.
        "And I <like> your {quality} {treasure}," <said> {hero}.
        They traded, and met {a new mood} {new animal}. <question>
        "I said, '{praise},' and now it is mine," <said> {friend}.
        That {hour} {friend} left the {place} with the {hue} {carried},
        and {hero} with the {quality} {treasure}.
    """,
    "errand": """
        Grandmother had <told> {hero.him}, "Bring me [list: {a new quality} {new treasure},
        {a new quality2} {new treasure2} and {a new quality3} {new treasure3}]."
        <meeting> "I need {list}," <said> {hero} <manner>.
        {hero} and the {animal} <saw> the {quality2} {treasure2} {new near}
        {a new texture} {new landmark}, and the {quality3} {treasure3} too.
        "Look, Grandmother," <said> {hero}, "{list}." <home>
    """,
    "hide": """
        Now {new friend_trait} {new friend} <walked> by. "Count to {new count}.
        [dare: You will <never> find me],"
        <said> {friend}, and hid {new near} {a new texture} {new landmark}.
        "{count.counted}!" <said> {hero}.
        {hero} <searched> {new near2} {a new texture2} {new landmark2}, but <saw> only
        {a new mood} {new animal}.
        "Look {near} the {texture} {landmark}," <said> the {animal}. There was {friend}!
        "You said, '{dare},' but here you are," <said> {hero}. <home>
    """,
    "skill": """
        More than anything, {hero} wanted to {new skill}.
        <meeting> "[wish: I <long> to {skill}]," {hero} told the {animal} <manner>.
        "Try {new count} times," <said> the {animal}.
        {hero} tried {new near} {a new texture} {new landmark}.
        "{count.counted}!" counted the {animal}.
        On the {count.ordinal} try, {hero} could {skill}!
        "You said, '{wish},' and now you can," <said> the {animal}. <home>
    """,
    "secret": """
        Next to {a new texture} {new landmark} stood {a new quality3} door.
        <meeting> "Say [password: {new quality} {new treasure}, {new quality2} {new treasure2}],"
        <said> the {animal} <manner>.
        "Did you say, '{password}'?" <asked> {hero}. "Yes, {password}," <said> the {animal}.
        The {quality3} door opened, and inside was {a new hue2} {new treasure3}! <home>
    """,
}

_STORY = {"story": "<beginning> <plot>", "plot": " | ".join(_PLOTS.values())}

GRAMMAR = grammar.Grammar(
    {**_WORDS, **_SENTENCES, **_STORY}, VARIABLES, start="story", terminator="\n"
)
