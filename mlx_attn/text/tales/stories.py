"""The tales: eight plots that share their beginnings, their endings and most of their sentences.

`hero`, `place`, `weather`, `hour` and what the hero carries (`hue`, `carried`) come from the first sentence, and the last one
speaks of them again. See `grammar` for the notation.
"""

from mlx_attn.text.tales.grammar import Grammar
from mlx_attn.text.tales.lexicon import (
    ANIMALS,
    FOODS,
    HOURS,
    LANDMARKS,
    MOODS,
    NUMBERS,
    PEOPLE,
    PLACES,
    QUALITIES,
    SKILLS,
    TEXTURES,
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
    "friend": unlike(PEOPLE, "hero"),
    "place": Variable(PLACES),
    "hue": Variable(QUALITIES),
    "carried": Variable(TREASURES),
    "quality": unlike(QUALITIES, "hue"),
    "thing": unlike(THINGS, "carried"),
    "treasure": unlike(TREASURES, "carried"),
    "quality2": unlike(QUALITIES, "hue", "quality"),
    "treasure2": unlike(TREASURES, "carried", "thing", "treasure"),
    "quality3": unlike(QUALITIES, "hue", "quality", "quality2"),
    "treasure3": unlike(TREASURES, "carried", "thing", "treasure", "treasure2"),
    "mood": Variable(MOODS),
    "animal": Variable(ANIMALS),
    "texture": Variable(TEXTURES),
    "landmark": Variable(LANDMARKS),
    "texture2": unlike(TEXTURES, "texture"),
    "landmark2": unlike(LANDMARKS, "landmark"),
    "food": Variable(FOODS),
    "skill": Variable(SKILLS),
    "total": _between(4, 7),
    "given": _leaving("total", 2),
    "left": _difference("total", "given"),
    "given2": _leaving("left", 1),
    "left2": _difference("left", "given2"),
    "count": _between(3, 6),
}

_WORDS = {
    "doing": "walking | playing | singing | resting | dancing | sitting | reading | waiting | skipping"
    " | daydreaming | humming | whistling",
    "walked": "walked | ran | skipped | hurried | wandered | marched | strolled | danced",
    "searched": "looked | searched | peeked | peered",
    "near": "behind | under | beside | near",
    "saw": "saw | found | met",
    "said": "3 * said | cried | whispered | called | laughed | murmured",
    "asked": "3 * asked | wondered | begged",
    "manner": "softly | quietly | loudly | politely | shyly | eagerly | slowly | kindly | gravely | sweetly",
    "happy": "happy | glad | proud | merry | tired | warm | pleased | content",
    "fine": "fine | lovely | splendid | beautiful | grand | strange | funny | handsome",
    "small": "small | little | secret | round | strange | heavy",
    "bag": "basket | bag | pocket | bowl | cap | cart",
    "tasty": "sweet | ripe | fresh | juicy | warm | small | round | brown",
}

_SENTENCES = {
    "opening": "3 * One {new weather} {new hour}, | On {a new weather} {new hour},"
    " | Once upon a time, on {a new weather} {new hour},",
    "hope": "I want to find | I must find | I hope to find | I wish I could find",
    "thanks": '"Thank you, {friend}," <said> {hero}. | "You are <kind>, {friend}," <said> {hero}.',
    "kind": "kind | clever | wonderful | a true friend",
    "later": "The next <doing_day>, | Days later, | Before long, | A week later,",
    "doing_day": "day | morning | evening",
    "home": "At last {hero} <walked> home from the {place} with {hero.his} {hue} {carried}, <happy> at heart."
    " | So ended that {weather} {hour} {place.at}, and {hero} still has the {hue} {carried}."
    " | That night {hero} dreamed of {friend}, the {place} and the {hue} {carried}."
    " | If you go to the {place} on {a weather} {hour}, you may meet {hero} with {hero.his} {hue} {carried}.",
}

_PLOTS = {
    "lost": """
        Oh no! {hero.His} {new quality} {new thing} {thing.was} gone.
        "[wish: <hope> my {quality} {thing}]," {hero.he} <said> <manner>.
        {hero.He} <searched> <near> {a new texture} {new landmark}, but <saw> only {a new quality2} {new treasure2}.
        Then {new friend} <walked> by. "Did you say, '{wish}'?" <asked> {friend}.
        They <searched> <near> {a new texture2} {new landmark2}, and there {thing.was} the {quality} {thing}!
        <thanks> <home>""",
    "share": """
        There were {new total} <tasty> {new food} in {hero.his} <bag>.
        {new friend} <walked> by. "[ask: I am hungry, and I love {food}]," {friend} <said> <manner>.
        {hero} gave {friend} {new given}, so {new left} {left.was} left.
        Then {a new mood} {new animal} came, and {hero} gave it {new given2}, so {new left2} {left2.was} left.
        "You heard me say, '{ask},'" said {friend}, "and you gave me {given}." <thanks> <home>""",
    "promise": """
        Suddenly {a new mood} {new animal} <said>, "Help! I am stuck <near> {a new texture} {new landmark}!"
        {hero} pulled until the {animal} was free.
        "[promise: I will bring you {a new quality} {new treasure}]," it said <manner>.
        <later> {hero} was <doing> with {new friend} when the {animal} came back.
        "I said, '{promise},' and here it is," said the {animal}.
        "What a <fine> {treasure}!" <said> {friend}. <home>""",
    "swap": """
        With {hero.him} was {new friend}, who had {a new quality} {new treasure}.
        "[like: I like your {hue} {carried}]," <said> {friend} <manner>.
        "And I like your {quality} {treasure}," <said> {hero}. So they traded.
        They met {a new mood} {new animal} <near> {a new texture} {new landmark}.
        "Whose is the {hue} {carried}?" <asked> the {animal}. "It is mine," said {friend}.
        "I told {hero}, '{like},' and we traded."
        That {hour} {friend} <walked> home from the {place} with the {hue} {carried}, and {hero} with the {quality} {treasure}.""",
    "errand": """
        Grandmother had told {hero.him}, "Bring me
        [list: {a new quality} {new treasure}, {a new quality2} {new treasure2} and {a new quality3} {new treasure3}]."
        {new friend} <walked> by. "What do you need?" <asked> {friend}.
        "I need {list}," <said> {hero} <manner>.
        They found the {quality2} {treasure2} <near> {a new texture} {new landmark}, and {a new mood} {new animal} gave them the rest.
        "Here you are, Grandmother," said {hero}, "{list}." <home>""",
    "hide": """
        It was time to play with {new friend}. "Count to {new count}," {friend} <said>, and {friend.he} hid
        [spot: <near> {a new texture} {new landmark}].
        "{count.counted}!" <said> {hero} <manner>. {hero.He} <searched> <near> {a new texture2} {new landmark2}, but <saw> only {a new mood} {new animal}.
        "Look {spot}," <said> the {animal}. {hero} looked {spot}, and there was {friend}! <home>""",
    "skill": """
        More than anything, {hero.he} wanted to {new skill}.
        "[wish: I wish I could {skill} like {a new mood} {new animal}]," {hero.he} <said> <manner>.
        {new friend} <walked> by and heard it. "Try {new count} times," {friend} <said>.
        {hero} tried <near> {a new texture} {new landmark}. "{count.counted}!" counted {friend}.
        On the {count.ordinal} try, {hero} could {skill}! "You said, '{wish},' and now you can," <said> {friend}. <home>""",
    "secret": """
        Next to {a new texture} {new landmark} stood a <small> door.
        "Say [password: {new quality} {new treasure}, {new quality2} {new treasure2}]," <said> {a new mood} {new animal}, and it ran off.
        {hero} <walked> to fetch {new friend}. "What did the {animal} say?" <asked> {friend}.
        "It said, '{password},'" <said> {hero} <manner>. The door opened, and inside was {a new quality3} {new treasure3}!
        <thanks> <home>""",
}

_TALE = {
    "tale": "<opening> {new hero} was <doing> {new place.at} with {a new hue} {new carried}. <plot>",
    "plot": " | ".join(_PLOTS.values()),
}

GRAMMAR = Grammar({**_WORDS, **_SENTENCES, **_TALE}, VARIABLES, start="tale", terminator="\n")
