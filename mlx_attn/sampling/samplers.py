"""How the next token is drawn: penalty, filters, temperature."""

import secrets

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.arrays import Arrays
from mlx_attn.sampling.config import SamplerConfig

Logits = Float[mx.array, "B V"]
Tokens = Integer[mx.array, "B N"]
Number = float | Float[mx.array, ""]

RECENT = 20  # tokens that the repetition penalty is for
_GREEDY_BELOW = 1e-6  # temperatures below this are 0: float32 could not tell them apart


def top_k(logits: Logits, k: int) -> Logits:
    """Keep the k likeliest tokens, or all if there are fewer."""
    likeliest = mx.topk(logits, min(k, logits.shape[-1]), axis=-1)
    # [B, V] >= [B, 1]: tokens as likely as the k-th are all kept.
    return mx.where(logits >= mx.min(likeliest, axis=-1, keepdims=True), logits, -mx.inf)


def top_p(logits: Logits, p: Number) -> Logits:
    """Keep the smallest set of likeliest tokens of probability p (nucleus, arXiv:1904.09751)."""
    probabilities = mx.softmax(logits, axis=-1)
    descending = -mx.sort(-probabilities, axis=-1)
    # [B, V]: the probability of all likelier tokens; the likeliest one is always kept, with 0.
    likelier = mx.cumsum(descending, axis=-1, inclusive=False)
    nucleus = mx.where(likelier < p, descending, mx.inf)
    # The nucleus has a least probability, which finds its tokens without undoing the sort.
    least = mx.min(nucleus, axis=-1, keepdims=True)
    return mx.where(probabilities >= least, logits, -mx.inf)


def min_p(logits: Logits, fraction: Number) -> Logits:
    """Keep tokens with probability >= fraction * the largest (arXiv:2407.01082)."""
    # p / p_max, without computing either.
    odds = mx.exp(logits - mx.max(logits, axis=-1, keepdims=True))
    return mx.where(odds >= fraction, logits, -mx.inf)


def penalise(logits: Logits, recent: Tokens, penalty: Number) -> Logits:
    """Divide positive logits of recent tokens by the penalty, and multiply negative ones by it.

    Keskar and others, "CTRL", arXiv:1909.05858, section 4.1, divide always; but that would make a
    token with a negative logit likelier.
    """
    # [B, N]
    seen = mx.take_along_axis(logits, recent, axis=-1)
    worse = mx.where(seen > 0, seen / penalty, seen * penalty)
    return mx.put_along_axis(logits, recent, worse, axis=-1)


def categorical(
    logits: Logits, keys: Integer[mx.array, "B 2"], over_temp: Number
) -> Integer[mx.array, " B"]:
    """Draw from softmax(logits / temperature), each row with its own random numbers."""
    # The likeliest becomes 0, so that a small temperature cannot overflow.
    shifted = logits - mx.max(logits, axis=-1, keepdims=True)
    # One draw per row: a batch would draw other numbers than its texts by themselves.
    rows = zip((shifted * over_temp).split(len(keys)), keys, strict=True)
    return mx.concatenate([mx.random.categorical(row, key=key) for row, key in rows])


class Sampler:
    """Penalty, filters and draw of texts that begin together; make a new one for the next texts.

    Text k draws like a single text with `seeds[k]`.

    Args:
        config: Its settings.
        count: Number of texts B.

    Attributes:
        seeds: Of each text: the configuration's seed, or one that was drawn, and those after it.
        state: Its numbers: random keys, recent tokens, and settings, which as arrays do not make
            another compiled code each.
        structure: Equal for samplers with equal code.
    """

    def __init__(self, config: SamplerConfig, count: int = 1):
        first = secrets.randbits(32) if config.seed is None else config.seed
        self.seeds = [(first + k) % 2**64 for k in range(count)]
        # k is a shape, so it is part of the code; numbers are inputs.
        self._top_k = config.top_k
        self.state: Arrays = {
            name: mx.array(getattr(config, name), mx.float32)
            for name, off in {"repetition_penalty": 1.0, "top_p": 1.0, "min_p": 0.0}.items()
            if getattr(config, name) != off
        }
        if "repetition_penalty" in self.state:
            self.state["recent"] = mx.zeros((count, 0), mx.uint32)
        if config.temp >= _GREEDY_BELOW:
            self.state["keys"] = mx.stack([mx.random.key(seed) for seed in self.seeds])
            self.state["over_temp"] = mx.array(1 / config.temp)
        self.structure = (*self.state, self._top_k)

    def __call__(self, logits: Logits, newest: Tokens) -> Integer[mx.array, "B 1"]:
        """Draw the next tokens; `newest` came since the last call, at first the prompt's."""
        tokens, self.state = self.draw(logits, newest, self.state)
        return tokens

    def draw(
        self, logits: Logits, newest: Tokens, state: Arrays
    ) -> tuple[Integer[mx.array, "B 1"], Arrays]:
        """Return the next tokens and the state after them, as a function of only arrays."""
        state = dict(state)
        # The order of mlx-lm: penalty, top_p, min_p, top_k, and only then the temperature.
        if "recent" in state:
            recent = mx.concatenate([state["recent"], newest], axis=1)
            B, N = recent.shape
            if 0 < N < RECENT:
                # The first token is repeated, which changes no penalty.
                missing = mx.broadcast_to(recent[:, :1], (B, RECENT - N))
                recent = mx.concatenate([missing, recent], axis=1)
            state["recent"] = recent[:, -RECENT:]
            logits = penalise(logits, state["recent"], state["repetition_penalty"])
        if "top_p" in state:
            logits = top_p(logits, state["top_p"])
        if "min_p" in state:
            logits = min_p(logits, state["min_p"])
        if self._top_k:
            logits = top_k(logits, self._top_k)
        if "keys" not in state:
            # [B, V] -> [B, 1]
            return mx.argmax(logits, axis=-1, keepdims=True), state
        split = mx.vmap(mx.random.split)(state["keys"])  # [B, 2, 2]
        state["keys"] = split[:, 0]
        return categorical(logits, split[:, 1], state["over_temp"])[:, None], state
