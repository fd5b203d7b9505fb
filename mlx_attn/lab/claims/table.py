"""The table of claims."""

from mlx_attn.errors import ConfigError, nearest
from mlx_attn.lab.claims.claim import Claim, Contest, Examination
from mlx_attn.lab.claims.examinations import (
    key_bias_is_inert,
    key_cache_is_enough,
    merging_costs,
    merging_is_exact,
    shrinking_is_exact,
)

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
    raise ConfigError(f"unknown claim '{name}'{nearest(name, CLAIMS)}")
