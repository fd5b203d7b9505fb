"""What a contest compares: one number of every training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import fmean
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_attn.attention.analysis import attention_cost
from mlx_attn.compare.comparison import ComparisonRun
from mlx_attn.compare.plan import ComparisonConfig, arms_from, corpus_of
from mlx_attn.compare.result import ArmResult, BudgetResult, Comparison, TrialResult
from mlx_attn.compare.runner import ComparisonEvent, Concluded, Runner
from mlx_attn.compare.statistics import Verdict, judge
from mlx_attn.convert.measure import logit_difference, sample_windows
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError, RunError, did_you_mean
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, model_cost
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.sampling.samplers import SamplerConfig
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import Settings, resolve
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a finished training, larger being worse.

    Attributes:
        of: Reads it.
        unit: What it is, for people.
        sign: 1, or -1 where larger is meant to read as better.
    """

    of: Callable[[TrialResult], float]
    unit: str
    sign: int = 1


def _accuracy(training: TrialResult) -> float:
    if training.accuracy is None:
        raise RunError("an ordinary text has no accuracy: measure the loss")
    return training.accuracy


MEASURES: dict[str, Measure] = {
    "loss": Measure(lambda t: t.val_loss, "nats per token"),
    "score rank": Measure(
        lambda t: t.ranks[-1].scores,
        "effective rank of S_h (a positive difference is a lower rank)",
        -1,
    ),
    "accuracy": Measure(_accuracy, "share of answers right (a positive difference is fewer)", -1),
}
"""Higher rank and accuracy read as better."""


HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
"""What can be said of a claim, here, at this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A claim about what is learned: put to the test by a comparison.

    Attributes:
        arms: The contestants as `arms_from` reads them; the first is the control.
        expects: For each arm that the claim speaks of, the words of a verdict that it amounts to.
        settings: What all arms share, over those of all claims.
        budgets: What is equal.
        measure: What is compared: a name in `measures.MEASURES`.
        delta: Differences of it smaller than this count as none.
    """

    arms: tuple[str, ...]
    expects: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    budgets: tuple[str, ...] = ("steps",)
    measure: str = "loss"
    delta: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A claim about algebra or cost: one model is examined, and the same numbers come every time.

    Attributes:
        examine: Measures; gives numbers by name, and whether they bear the claim out.
    """

    examine: Callable[[], tuple[Mapping[str, float], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that was said of attention.

    Attributes:
        name: What `claims run` calls it.
        statement: What it says, in one sentence.
        source: Who says so.
        protocol: How it is tested here, in one sentence.
        test: The test.
    """

    name: str
    statement: str
    source: str
    protocol: str
    test: Contest | Examination


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFinding:
    """One arm of a contest.

    Attributes:
        arm: Its name.
        value: The mean of what is measured, over seeds.
        params: Trained numbers.
        multiply_adds: Per token, forward.
        cache_bytes_per_token: Bytes remembered per token when decoding.
        verdict: Against the control; None for the control itself.
        refused: Why there is no result, "" where there is one.
    """

    arm: str
    value: float | None
    params: int
    multiply_adds: int
    cache_bytes_per_token: int
    verdict: Verdict | None
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What testing a claim found.

    Attributes:
        claim: Its name.
        statement: What it says.
        source: Who says so.
        protocol: How it was tested.
        answer: "holds", "does not hold" or "undecided": here, at this size.
        unit: Of the arms' values.
        arms: The arms of a contest, by budget; empty for an examination.
        numbers: What an examination measured, or how noisy a contest was.
        noise: The contest's control against itself; None for an examination.
        seeds: Seeds of the verdict; 0 for an examination.
        delta: Differences smaller than this count as none.
        settings: The contest's shared settings.
        command: What reproduces it.
        versions: Of what made it.
    """

    claim: str
    statement: str
    source: str
    protocol: str
    answer: str
    unit: str
    arms: Mapping[str, tuple[ArmFinding, ...]]
    numbers: Mapping[str, float]
    noise: Verdict | None
    seeds: int
    delta: float
    settings: Mapping[str, Any]
    command: str
    versions: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim was tested.

    Attributes:
        finding: What came of it.
        comparison: All that a contest's finding rests on; None for an examination.
    """

    finding: Finding
    comparison: Comparison | None


Numbers = Mapping[str, float]
Examined = tuple[Numbers, bool]

EXACT = 1e-5
"""Largest difference of logits, relative to the largest logit, that counts as none in float32."""

_SETTINGS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "qkv_bias": True,
    "optimizer": "adamw",
    "steps": 60,
    "eval_every": 0,
}
_PROMPT_TOKENS, _WRITTEN = 8, 100


def merging_is_exact() -> Examined:
    """S_h = W_query_h W_key_h^T computes what the two matrices compute, biases included."""
    return _same_as("merged")


def shrinking_is_exact() -> Examined:
    """Of every query-key and value-output pair, head_dim^2 weights per head can go."""
    model, _ = _trained()
    numbers, holds = _same_as("shrunk")
    removed = (
        model_cost(model.config).parameters - model_cost(convert(model, "shrunk").config).parameters
    )
    return {**numbers, "weights removed": removed}, holds and removed > 0


def key_cache_is_enough() -> Examined:
    """Values made from cached keys: half the cache, the same tokens."""
    model, corpus = _trained()
    slim = convert(model, "slim")
    numbers, _ = _same_as("slim")
    ratio = model_cost(slim.config).cache_floats / model_cost(model.config).cache_floats
    same = _written(slim, corpus) == _written(model, corpus)
    found = {**numbers, "cache, times the original": ratio, "same greedy text": float(same)}
    return found, same and ratio == 0.5


def key_bias_is_inert() -> Examined:
    """A key's bias adds the same to all scores of a row, which the softmax does not see."""
    model, corpus = _trained()
    windows = _windows(model, corpus)
    gradients = _bias_gradients(model, mx.concatenate([windows, windows[:, :1]], axis=1))
    before = model(windows)
    moved = _with_key_bias(model, 1.0)
    change = float(np.abs(np.array(moved(windows) - before)).max())
    largest = float(np.abs(np.array(before)).max())
    numbers = {
        "gradient of b_key, times that of b_query": gradients["W_key"] / gradients["W_query"],
        "largest logit difference, b_key moved by 1": change,
        "largest logit": largest,
    }
    return numbers, change <= EXACT * largest and numbers[next(iter(numbers))] < 1e-4


def merging_costs() -> Examined:
    """With H heads S has H/2 times the weights of the two matrices, and H times the products."""
    config = GPTConfig(n_heads=12, emb_dim=768, n_layers=12, vocab_size=50257, context_length=256)
    merged = replace(config, score="merged")
    pairs = attention_cost(config.attention()), attention_cost(merged.attention())
    C, H, T = config.emb_dim, config.n_heads, config.context_length
    query_key = (pairs[1].parameters - (pairs[0].parameters - 2 * C * C)) / (2 * C * C)
    extra = pairs[1].multiply_adds - pairs[0].multiply_adds - (H - 2) * C * C
    scores = (extra + T * C) / (T * C)
    numbers = {
        "heads": float(H),
        "query-key weights, times separate": query_key,
        "score multiply-adds, times separate": scores,
        "attention weights, times separate": pairs[1].parameters / pairs[0].parameters,
        "attention multiply-adds, times separate": pairs[1].multiply_adds / pairs[0].multiply_adds,
        "cache, times separate": pairs[1].cache_floats / pairs[0].cache_floats,
    }
    return numbers, query_key == H / 2 and scores == H


@cache
def _trained() -> tuple[GPT, Corpus]:
    """A model with biases, trained until it says something."""
    settings = resolve(_SETTINGS)
    corpus = corpus_of(settings)
    trainer = Trainer(settings, corpus)
    for _ in train(trainer):
        pass
    trainer.model.eval()
    return trainer.model, corpus


def _same_as(form: str) -> Examined:
    """How far the logits of another form are from the model's."""
    model, corpus = _trained()
    windows = _windows(model, corpus)
    difference = logit_difference(model, convert(model, form), windows)
    largest: Any = mx.abs(model(windows)).max().item()
    numbers = {"largest logit difference": difference, "largest logit": largest}
    return numbers, difference <= EXACT * largest


def _windows(model: GPT, corpus: Corpus) -> mx.array:
    return sample_windows(corpus.val, model.config.context_length, 2048)


def _written(model: GPT, corpus: Corpus) -> str:
    beginning = map(int, corpus.val.tokens[:_PROMPT_TOKENS])
    prompt = b"".join(map(corpus.tokenizer.token_bytes, beginning)).decode(errors="ignore")
    pieces = stream_generate(model, corpus.tokenizer, prompt, SamplerConfig(temp=0.0), _WRITTEN)
    return "".join(piece.text for piece in pieces)


def _bias_gradients(model: GPT, windows: mx.array) -> dict[str, float]:
    """The norms of the gradients of query and key biases, all layers together."""
    _, gradients = nn.value_and_grad(model, lambda w: window_losses(model, w).mean())(windows)
    blocks = gradients["trf_blocks"]
    return {
        name: float(np.sqrt(sum(np.square(np.array(b["att"][name]["bias"])).sum() for b in blocks)))
        for name in ("W_query", "W_key")
    }


def _with_key_bias(model: GPT, change: float) -> GPT:
    """The model with all its key biases moved."""
    moved = GPT(model.config)
    moved.update(model.parameters())
    for block in moved.trf_blocks:
        block.att.W_key.bias = block.att.W_key.bias + change
    moved.eval()
    return moved


NO_WORSE = ("equivalent", "better")
"""Nothing is lost."""

_KARBEVSKI = "Karbevski and Mijoski, W_K, W_V is probably all you need (arXiv 2510.23912)"
_FUDAN = "wangyi_fudan, Wq can be omitted in single head attention (r/MachineLearning)"
_HE = "He and Hofmann, Simplifying Transformer Blocks (arXiv 2311.01906)"
_CORDONNIER = "Cordonnier, Loukas and Jaggi, Collaborate (arXiv 2006.16362)"
_KAYYAM = "Kayyam and others, Do Transformers Need Three Projections? (arXiv 2606.04032)"
_KOBAYASHI = "Kobayashi, Akram and von Oswald (arXiv 2410.23819)"
_TARZANAGH = "Tarzanagh and others, Transformers as Support Vector Machines (arXiv 2308.16898)"

_ROWS = (
    Claim(
        name="merging-is-exact",
        statement="W_query and W_key can be replaced by their product S without changing an output",
        source="algebra: x_i W_query (x_j W_key)^T = x_i S x_j^T",
        protocol="a trained model with biases is converted and the logits are compared",
        test=Examination(examine=merging_is_exact),
    ),
    Claim(
        name="merging-costs",
        statement="with several heads the merged matrix costs more memory and more arithmetic",
        source="StellaAthena, in the discussion of that r/MachineLearning post",
        protocol="weights and multiply-adds are counted for GPT-2 small's attention, 12 heads",
        test=Examination(examine=merging_costs),
    ),
    Claim(
        name="key-bias-is-inert",
        statement="a bias of the key changes nothing: the softmax does not see it",
        source="algebra: it adds x_i W_query b_key^T to all scores of row i",
        protocol="the bias of a trained model is moved by 1, and its gradient is measured",
        test=Examination(examine=key_bias_is_inert),
    ),
    Claim(
        name="key-cache-is-enough",
        statement="values can be made from cached keys: half the cache, the same text",
        source="Graef and Wasielewski, Slim attention (arXiv 2503.05840)",
        protocol="a trained model is converted and writes 100 greedy tokens with its own cache",
        test=Examination(examine=key_cache_is_enough),
    ),
    Claim(
        name="weights-can-be-shrunk",
        statement="head_dim^2 weights of each query-key and value-output pair can go, exactly",
        source="Graef and Wasielewski, MatShrink (OpenMachine-ai/transformer-tricks)",
        protocol="a trained model is converted and the logits are compared",
        test=Examination(examine=shrinking_is_exact),
    ),
    Claim(
        name="merged-learns-as-well",
        statement="a merged S, trained directly, learns as well as W_query and W_key",
        source="readers of the book who fold the two matrices and train the result",
        protocol="standard against merged, 4 heads, each with its own learning rates",
        test=Contest(
            arms=("standard", "merged"), expects={"merged": NO_WORSE}, budgets=("steps", "params")
        ),
    ),
    Claim(
        name="query-not-needed-one-head",
        statement="with one head W_query can go at no cost",
        source=_FUDAN,
        protocol="one head with and without W_query",
        test=Contest(
            arms=("one head: standard, n_heads=1", "no query: no-query, n_heads=1"),
            expects={"no query": NO_WORSE},
        ),
    ),
    Claim(
        name="query-needed-several-heads",
        statement="with several heads W_query is necessary",
        source=_FUDAN,
        protocol="four heads with and without W_query",
        test=Contest(arms=("standard", "no-query"), expects={"no-query": ("worse",)}),
    ),
    Claim(
        name="query-not-needed-several-heads",
        statement="without W_query several heads do as well, with half the scale and the weights "
        "given to the feed-forward layer",
        source=_KARBEVSKI,
        protocol="four heads without W_query at scale 1/(2 sqrt(head_dim)), at equal parameters",
        test=Contest(
            arms=("standard", "half scale: no-query, scale=0.125", "no-query"),
            expects={"half scale": NO_WORSE},
            budgets=("params", "steps"),
        ),
    ),
    Claim(
        name="output-not-needed-several-heads",
        statement="the output projection can go with several heads too",
        source="questions to the book, llama3, minGPT and seq2rel",
        protocol="four heads with and without out_proj",
        test=Contest(
            arms=("standard", "no-out-proj"),
            expects={"no-out-proj": NO_WORSE},
            budgets=("steps", "params"),
        ),
    ),
    Claim(
        name="output-not-needed-one-head",
        statement="with one head out_proj can go: W_value does its work",
        source="x-transformers leaves it out there; algebra: V O is one matrix",
        protocol="one head with and without out_proj",
        test=Contest(
            arms=("one head: standard, n_heads=1", "no out_proj: no-out-proj, n_heads=1"),
            expects={"no out_proj": NO_WORSE},
        ),
    ),
    Claim(
        name="output-not-needed-one-head-book-start",
        statement="with one head out_proj can go where no branch starts at zero",
        source="the same algebra, from the weights that the book starts from",
        protocol="one head with and without out_proj, all weights drawn as in the book",
        test=Contest(
            arms=("one head: standard, n_heads=1", "no out_proj: no-out-proj, n_heads=1"),
            expects={"no out_proj": NO_WORSE},
            settings={"start": "book"},
        ),
    ),
    Claim(
        name="output-not-needed-several-heads-book-start",
        statement="out_proj can go with several heads where no branch starts at zero",
        source="the same questions, from the weights that the book starts from",
        protocol="four heads with and without out_proj, all weights drawn as in the book",
        test=Contest(
            arms=("standard", "no-out-proj"),
            expects={"no-out-proj": NO_WORSE},
            settings={"start": "book"},
        ),
    ),
    Claim(
        name="value-not-needed",
        statement="W_value can go, and W_value and out_proj together",
        source=_HE,
        protocol="four heads without W_value, and without W_value and out_proj",
        test=Contest(
            arms=("standard", "no-value", "no-value-no-out-proj"),
            expects={"no-value": NO_WORSE, "no-value-no-out-proj": NO_WORSE},
        ),
    ),
    Claim(
        name="keys-as-values",
        statement="one matrix for keys and values costs little, 0.031 nats there; for queries and "
        "keys more, for all three most, 0.22",
        source=_KAYYAM,
        protocol="four heads with matrices shared that way",
        test=Contest(
            arms=(
                "standard",
                "key-as-value",
                "shared-query-key",
                "one matrix for all: shared-query-key, value=key",
            ),
            expects={
                "key-as-value": ("worse", "equivalent"),
                "shared-query-key": ("worse",),
                "one matrix for all": ("worse",),
            },
        ),
    ),
    Claim(
        name="shared-query-key-is-no-worse",
        statement="one matrix for queries and keys is no worse",
        source="Kitaev, Kaiser and Levskaya, Reformer (arXiv 2001.04451)",
        protocol="four heads with and without a key matrix of their own",
        test=Contest(arms=("standard", "shared-query-key"), expects={"shared-query-key": NO_WORSE}),
    ),
    Claim(
        name="recall-needs-asymmetry",
        statement="one matrix for queries and keys fails where a query asks for another key",
        source="the fast.ai replication of Reformer doubts that sharing is free; the task is ours",
        protocol="recall of permuted keys, with and without a key matrix of its own",
        test=Contest(
            arms=("standard", "shared-query-key"),
            expects={"shared-query-key": ("worse",)},
            settings={"data": "permuted-recall"},
            measure="accuracy",
        ),
    ),
    Claim(
        name="collaboration-is-free",
        statement="heads can share query and key dimensions, four times fewer, at no cost",
        source=_CORDONNIER,
        protocol="four heads that share one W_query and W_key of a quarter of the width",
        test=Contest(
            arms=(
                "standard",
                "shared quarter: collaborative, head_dim=4, value_dim=16, scale=0.25",
            ),
            expects={"shared quarter": NO_WORSE},
        ),
    ),
    Claim(
        name="narrow-heads-hurt",
        statement="heads narrower than a sequence is long lose rank, and with it loss",
        source="Bhojanapalli and others, Low-Rank Bottleneck (arXiv 2002.07028)",
        protocol="four heads with queries and keys of 4, 16 and 64 dimensions, and values of 16",
        test=Contest(
            arms=(
                "standard",
                "4 wide: head_dim=4, value_dim=16",
                "64 wide: head_dim=64, value_dim=16",
            ),
            expects={"4 wide": ("worse",), "64 wide": ("better",)},
        ),
    ),
    Claim(
        name="several-heads-beat-one",
        statement="one head is worse than several of the same total width, and too many are too",
        source="Vaswani and others, Attention Is All You Need, table 3 (arXiv 1706.03762)",
        protocol="1, 2, 8 and 16 heads against 4, width 64 in all",
        test=Contest(
            arms=(
                "standard",
                "one head: n_heads=1",
                "2 heads: n_heads=2",
                "8 heads: n_heads=8",
                "16 heads: n_heads=16",
            ),
            expects={"one head": ("worse",), "16 heads": ("worse",)},
        ),
    ),
    Claim(
        name="decay-lowers-rank",
        statement="weight decay on W_query and W_key lowers the rank of their product",
        source=_KOBAYASHI,
        protocol="standard with and without weight decay; effective rank of S_h at the end",
        test=Contest(
            arms=("standard", "decay: standard, weight_decay=0.5"),
            expects={"decay": ("worse",)},
            measure="score rank",
            delta=0.25,
        ),
    ),
    Claim(
        name="merged-has-higher-rank",
        statement="a merged S keeps a flatter spectrum than the product of W_query and W_key",
        source=_TARZANAGH,
        protocol="effective rank of S_h at the end, standard against merged",
        test=Contest(
            arms=("standard", "merged"),
            expects={"merged": ("better",)},
            measure="score rank",
            delta=0.25,
        ),
    ),
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in _ROWS}


def find_claim(name: str) -> Claim:
    """The named claim.

    Raises:
        ConfigError: There is none of that name; the nearest is suggested.
    """
    if name in CLAIMS:
        return CLAIMS[name]
    raise ConfigError(f"unknown claim '{name}'{did_you_mean(name, CLAIMS)}")


def finding_of(claim: Claim, contest: Contest, comparison: Comparison) -> Finding:
    """What a comparison says of a claim."""
    measure = MEASURES[contest.measure]
    arms = {
        result.budget: _arms(result, measure, contest.delta, comparison.confidence)
        for result in comparison.budgets
    }
    return Finding(
        claim=claim.name,
        statement=claim.statement,
        source=claim.source,
        protocol=claim.protocol,
        answer=answer_of(contest, arms[contest.budgets[0]]),
        unit=measure.unit,
        arms=arms,
        numbers=_noise(comparison),
        noise=comparison.noise.verdict if comparison.noise else None,
        seeds=len(comparison.budgets[0].arms[0].trainings),
        delta=contest.delta,
        settings=comparison.settings,
        command=comparison.command,
        versions=comparison.versions,
    )


def answer_of(contest: Contest, arms: tuple[ArmFinding, ...]) -> str:
    """Whether a claim holds: every arm that it speaks of must end with a word that it expects.

    One arm that decidedly ends with another word refutes it.
    """
    words = {arm.arm: arm.verdict.word for arm in arms if arm.verdict}
    said = [(words.get(arm, UNDECIDED), expected) for arm, expected in contest.expects.items()]
    if all(word in expected for word, expected in said):
        return HOLDS
    decided = [(word, expected) for word, expected in said if word != UNDECIDED]
    return FAILS if any(word not in expected for word, expected in decided) else UNDECIDED


def _arms(
    result: BudgetResult, measure: Measure, delta: float, confidence: float
) -> tuple[ArmFinding, ...]:
    control, *others = result.arms
    differences = {
        arm.arm: [
            measure.sign * (a - b)
            for a, b in zip(_values(arm, measure), _values(control, measure), strict=True)
        ]
        for arm in others
    }
    verdicts: Mapping[str, Verdict] = judge(differences, delta, confidence) if others else {}
    found = [_arm(arm, measure, verdicts.get(arm.arm)) for arm in result.arms]
    refused = [
        ArmFinding(
            arm=name,
            value=None,
            params=0,
            multiply_adds=0,
            cache_bytes_per_token=0,
            verdict=None,
            refused=reason,
        )
        for name, reason in result.refused.items()
    ]
    return (*found, *refused)


def _values(arm: ArmResult, measure: Measure) -> list[float]:
    return [measure.of(training) for training in arm.trainings]


def _arm(arm: ArmResult, measure: Measure, verdict: Verdict | None) -> ArmFinding:
    return ArmFinding(
        arm=arm.arm,
        value=fmean(_values(arm, measure)),
        params=arm.params,
        multiply_adds=arm.multiply_adds,
        cache_bytes_per_token=arm.cache_bytes_per_token,
        verdict=verdict,
    )


def _noise(comparison: Comparison) -> dict[str, Any]:
    noise = comparison.noise
    if noise is None:
        return {}
    return {
        "spread between seeds": noise.seed_spread,
        "same seed twice": noise.repeat_difference,
    }


SETTINGS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "optimizer": "adamw",
    "lr": 0.02,
    "steps": 200,
}
"""What all contests share: two layers of width 64 with four heads, on the tales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much goes into every contest.

    Attributes:
        seeds: Of the verdict.
        tuning_seeds: That each learning rate is tried on.
        scales: Factors of the learning rates to begin with.
        settings: Over those of all contests and of each.
    """

    seeds: int = 5
    tuning_seeds: int = 1
    scales: tuple[float, ...] = (0.5, 1.0, 2.0)
    settings: Mapping[str, Any] | None = None


def run_claim(
    claim: Claim, crew: Runner, effort: Budget, command: str, versions: Mapping[str, Any]
) -> Iterator[ComparisonEvent | ClaimResult]:
    """Test a claim; what comes last is what was found.

    Args:
        claim: The claim.
        crew: Does the trainings that a contest needs.
        effort: How much goes into a contest.
        command: What reproduces it.
        versions: Of what makes it.

    Raises:
        RunError: A training's process failed, or the control diverged.
    """
    if isinstance(claim.test, Examination):
        yield _examined(claim, claim.test, command, versions)
        return
    for event in ComparisonRun(_protocol(claim, claim.test, effort, command), crew, versions):
        if isinstance(event, Concluded):
            comparison = event.comparison
            yield ClaimResult(finding_of(claim, claim.test, comparison), comparison)
        else:
            yield event


def shared_settings(test: Contest, effort: Budget) -> dict[str, Any]:
    """What the arms of a contest share; a task keeps its own recipe."""
    usual = {} if test.settings.get("data") in TASKS else SETTINGS
    return {**usual, **test.settings, **(effort.settings or {})}


def example_of(claims: Sequence[Claim], effort: Budget) -> Settings | None:
    """Settings of the first training that testing needs; None where nothing is trained."""
    for claim in claims:
        if isinstance(claim.test, Contest):
            protocol = _protocol(claim, claim.test, effort, "")
            return protocol.settings(protocol.arms[0])
    return None


def _protocol(claim: Claim, test: Contest, effort: Budget, command: str) -> ComparisonConfig:
    return ComparisonConfig(
        arms=arms_from(test.arms),
        shared=shared_settings(test, effort),
        seeds=effort.seeds,
        tuning_seeds=effort.tuning_seeds,
        scales=effort.scales,
        budgets=test.budgets,
        name=claim.name,
        question=claim.statement,
        command=command,
    )


def _examined(
    claim: Claim, test: Examination, command: str, versions: Mapping[str, Any]
) -> ClaimResult:
    numbers, holds = test.examine()
    finding = Finding(
        claim=claim.name,
        statement=claim.statement,
        source=claim.source,
        protocol=claim.protocol,
        answer=HOLDS if holds else FAILS,
        unit="",
        arms={},
        numbers=dict(numbers),
        noise=None,
        seeds=0,
        delta=0.0,
        settings={},
        command=command,
        versions=versions,
    )
    return ClaimResult(finding, None)
