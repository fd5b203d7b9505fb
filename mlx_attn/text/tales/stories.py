"""The tales: eight plots that share their beginnings, endings and many of their sentences.

The hero, the place, the weather, the hour and what the hero carries come from the first sentence,
and the last one speaks of them again. `grammar` explains the notation.
"""

from mlx_attn.text.tales.grammar import Grammar
from mlx_attn.text.tales.lexicon import (
    ANIMALS,
    FEELINGS,
    FOODS,
    HOURS,
    LANDMARKS,
    MOODS,
    NEAR,
    NUMBERS,
    PEOPLE,
    PLACES,
    QUALITIES,
    SKILLS,
    THINGS,
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
    "hero": Variable(PEOPLE),
    "trait": Variable(MOODS),
    "friend": unlike(PEOPLE, "hero"),
    "friend_trait": unlike(MOODS, "trait"),
    "place": Variable(PLACES),
    "hue": Variable(QUALITIES),
    "carried": Variable(TREASURES),
    "quality": unlike(QUALITIES, "hue"),
    "thing": unlike(THINGS, "carried"),
    "treasure": unlike(TREASURES, "carried"),
    "quality2": unlike(QUALITIES, "quality"),
    "treasure2": unlike(TREASURES, "thing", "treasure"),
    "quality3": unlike(QUALITIES, "quality", "quality2"),
    "treasure3": unlike(TREASURES, "treasure", "treasure2"),
    "mood": Variable(MOODS),
    "animal": Variable(ANIMALS),
    "near": Variable(NEAR),
    "shade": Variable(QUALITIES),
    "landmark": Variable(LANDMARKS),
    "near2": Variable(NEAR),
    "shade2": unlike(QUALITIES, "shade"),
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
    "fine": "lovely | splendid | strange | funny",
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
        3 * One {new weather} {new hour}, {new trait} {new hero} was <doing> {new place.at}
            with {a new hue} {new carried}.
        | 2 * On {a new weather} {new hour}, {new trait} {new hero} <walked> to the {new place}
            with {a new hue} {new carried}.
        | It was {a new weather} {new hour}, and {new trait} {new hero} was <doing>
            {new place.at} with {a new hue} {new carried}.
    """,
    "meeting": "<soon> {new friend_trait} {new friend} <walked> by.",
    "question": """
        "Who has the {hue} {carried} now?" it <asked>. "{friend} has," <said> {hero}.
        | "Who had the {hue} {carried} first?" it <asked>. "{hero} had," <said> {friend}.
    """,
    "home": """
        Then {trait} {hero} <walked> home with {hero.his} {hue} {carried}, {new feeling}
            and {new feeling2}.
        | So ended that {weather} {hour} {place.at}, and {hero} kept {hero.his} {hue} {carried}.
        | That night {trait} {hero} dreamed of {friend}, the {place} and {hero.his} {hue} {carried}.
        | Look for {hero} and {hero.his} {hue} {carried} {place.at}, on {a weather} {hour}.
    """,
}

_PLOTS = {
    "lost": """
        Oh no! {hero.His} {new quality} {new thing} {thing.was} gone.
        "[wish: I <hope> find my {quality} {thing}]," {hero.he} <said> <manner>.
        {hero.He} <searched> {new near} {a new shade} {new landmark}, but <saw> only
        {a new quality2} {new treasure2}.
        <meeting> "Did you say, '{wish}'?" <asked> {friend}.
        They <searched> {new near2} {a new shade2} {new landmark2},
        and there {thing.was} the {quality} {thing}! <home>
    """,
    "share": """
        There were {new total} <tasty> {new food} in {hero.his} <bag>.
        <meeting> "[plea: I am <starved>, and I love {food}]," {friend.he} <said> <manner>.
        {hero} gave {friend.him} {new given}, so {new left} {left.was} left.
        <soon> {a new mood} {new animal} <walked> by, and {hero.he} gave it {new given2},
        so {new left2} {left2.was} left.
        "I said, '{plea},' and you gave me {given}," <said> {friend} <manner>. <home>
    """,
    "promise": """
        Suddenly {a new mood} {new animal} <said>,
        "Help! I am stuck {new near} {a new shade} {new landmark}!"
        {hero} <pulled> until it was free.
        "[promise: I will bring you {a new quality} {new treasure}]," it <said> <manner>.
        <later> the {animal} came back. "I said, '{promise},' and here it is."
        <meeting> "What a <fine> {treasure}!" {friend.he} <said> <manner>. <home>
    """,
    "swap": """
        Beside {hero.him} sat {new friend_trait} {new friend} with {a new quality} {new treasure}.
        "[praise: I <like> your {hue} {carried}]," <said> {friend} <manner>.
        "And I <like> your {quality} {treasure}," <said> {hero} <manner>.
        They traded, and met {a new mood} {new animal}. <question>
        "I said, '{praise},' and now it is mine," <said> {friend} <manner>.
        That {hour} {friend} left the {place} with the {hue} {carried},
        and {hero} with the {quality} {treasure}.
    """,
    "errand": """
        Grandmother had <told> {hero.him}, "Bring me [list: {a new quality} {new treasure},
        {a new quality2} {new treasure2} and {a new quality3} {new treasure3}]."
        <meeting> "I need {list}," <said> {hero} <manner>.
        They <saw> the {quality2} {treasure2} {new near} {a new shade} {new landmark},
        and the {quality3} {treasure3} too.
        "Look, Grandmother," <said> {hero}, "{list}." <home>
    """,
    "hide": """
        Now {new friend_trait} {new friend} <walked> by. "Count to {new count}.
        [dare: You will <never> find me],"
        {friend.he} <said>, and hid {new near} {a new shade} {new landmark}.
        "{count.counted}!" <said> {hero} <manner>.
        {hero.He} <searched> {new near2} {a new shade2} {new landmark2}, but <saw> only
        {a new mood} {new animal}.
        "Look {near} the {shade} {landmark}," it <said> <manner>. There was {friend}!
        "You said, '{dare},' but here you are," <said> {hero}. <home>
    """,
    "skill": """
        More than anything, {hero.he} wanted to {new skill}.
        "[wish: I <long> to {skill} like {a new mood} {new animal}]," {hero.he} <said> <manner>.
        <meeting> "Try {new count} times," {friend.he} <said> <manner>.
        {hero} tried {new near} {a new shade} {new landmark}. "{count.counted}!"
        On the {count.ordinal} try, {hero} could {skill}!
        "You said, '{wish},' and now you can," <said> {friend}. <home>
    """,
    "secret": """
        Next to {a new shade} {new landmark} stood {a new shade2} door.
        "Say [password: {new quality} {new treasure}, {new quality2} {new treasure2}],"
        <said> {a new mood} {new animal}, and it <walked> off.
        <meeting> "What did the {animal} say?" {friend.he} <asked>.
        "It said, '{password},'" <said> {hero} <manner>.
        The door opened, and inside was {a new quality3} {new treasure3}! <home>
    """,
}

_TALE = {"tale": "<beginning> <plot>", "plot": " | ".join(_PLOTS.values())}

GRAMMAR = Grammar({**_WORDS, **_SENTENCES, **_TALE}, VARIABLES, start="tale", terminator="\n")
