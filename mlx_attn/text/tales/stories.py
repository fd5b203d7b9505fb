"""The tales: eight plots that share their beginnings, endings and many of their sentences.

The hero, the place, the weather, the hour and what the hero carries come from the first sentence,
and the last one speaks of them again. `grammar` explains the notation.
"""

from mlx_attn.text.tales.grammar import Grammar
from mlx_attn.text.tales.lexicon import (
    ANIMALS,
    BELONGINGS,
    FEELINGS,
    FOODS,
    HOURS,
    HUES,
    LANDMARKS,
    MOODS,
    NEAR,
    NUMBERS,
    PEOPLE,
    PLACES,
    QUALITIES,
    SKILLS,
    TEXTURES,
    THINGS,
    TRAITS,
    TREASURES,
    WEATHERS,
)
from mlx_attn.text.tales.words import COUNTING, Variable, Word, unlike


def _between(least: int, most: int) -> Variable:
    return Variable(NUMBERS, (), lambda word: least <= word.value <= most)


def _leaving(total: str, least: int) -> Variable:
    """A number to take away from a total so that at least so many are left."""
    return Variable(
        NUMBERS, (total,), lambda word, whole: word.value <= whole.value - least, COUNTING
    )


def _difference(total: str, taken: str) -> Variable:
    def left(word: Word, whole: Word, part: Word) -> bool:
        return word.value == whole.value - part.value

    return Variable(NUMBERS, (total, taken), left, COUNTING)


VARIABLES = {
    "weather": Variable(WEATHERS),
    "hour": Variable(HOURS),
    "place": Variable(PLACES),
    "trait": Variable(TRAITS),
    "hero": Variable(PEOPLE),
    "friend_trait": unlike(TRAITS, "trait"),
    "friend": unlike(PEOPLE, "hero"),
    "hue": Variable(HUES),
    "carried": Variable(BELONGINGS),
    "hue2": unlike(HUES, "hue"),
    "quality": Variable(QUALITIES),
    "thing": Variable(THINGS),
    "treasure": Variable(TREASURES),
    "quality2": unlike(QUALITIES, "quality"),
    "treasure2": unlike(TREASURES, "thing", "treasure"),
    "quality3": unlike(QUALITIES, "quality", "quality2"),
    "treasure3": unlike(TREASURES, "treasure", "treasure2"),
    "mood": Variable(MOODS),
    "animal": Variable(ANIMALS),
    "near": Variable(NEAR),
    "texture": Variable(TEXTURES),
    "landmark": Variable(LANDMARKS),
    "near2": Variable(NEAR),
    "texture2": unlike(TEXTURES, "texture"),
    "landmark2": unlike(LANDMARKS, "landmark"),
    "food": Variable(FOODS),
    "skill": Variable(SKILLS),
    "total": _between(4, 7),
    "given": _leaving("total", 2),
    "left": _difference("total", "given"),
    "given2": _leaving("left", 1),
    "left2": _difference("left", "given2"),
    "feeling": Variable(FEELINGS),
    "feeling2": unlike(FEELINGS, "feeling"),
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

_TALE = {"tale": "<beginning> <plot>", "plot": " | ".join(_PLOTS.values())}

GRAMMAR = Grammar({**_WORDS, **_SENTENCES, **_TALE}, VARIABLES, start="tale", terminator="\n")
