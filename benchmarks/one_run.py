"""Simulate how often one run lies to a loop that tries changes, and how often `compare` does.

    python benchmarks/one_run.py

This rule was written before anything was computed. Only a first look was known: at 4800 steps, with
a standard deviation of .0084, one run each keeps about 4.4 of 100 and believes in .021 nats.

A night. 100 ideas are tried, one after another, on shakespeare with the book's start, after 300 and
after 4800 steps. An idea that does nothing is a null: its runs are runs of the same form with other
seeds. 2000 nights are drawn, with a fixed seed, for each rule.

Losses. At 300 steps they are drawn with replacement from the 24 trainings of the study
`fresh-seeds`: the book's form around its mean, for a single run; and, for pairs, the differences by
seed of the forms without `out_proj`, without `W_query` and with one head, each around its own mean.
After 4800 steps there are six to eight seeds, so they are normal, with the standard deviation of
those; its 95 % interval (chi squared) is printed. It scales the gain that is believed in.

One run. The baseline is one run, never repeated. An idea is kept if its one run is below the best
so far, which it then is. Counted: ideas kept; the gain believed in, which is the baseline minus the
last best (the true one is 0); nights that keep any null. Three kinds of null:
    other seed    each idea's run has its own seed
    same run      a fixed seed, and the idea changes no bit: every run has the baseline's loss
    one rounding  a fixed seed, and the idea changes the roundings: normal, with the standard
                  deviation of 12 trainings of one seed whose learning rate differs by parts in 10^7

`compare`. An idea is asked alone, with n pairs, 3, 5 or 8, and kept on "better". The word is that
of `mlx_attn.comparison.judging`, with no tuning and a margin of 0.015 nats, the records'. Its level
is
    5 %     for each idea
    spent   0.05 / (k (k + 1)) for idea k
    even    0.05 / 100 for each idea
The gain believed in is the sum of the mean differences of those kept. Calls have the same seeds, so
the control's runs are shared by the ideas of a night: a difference is x_k - x_0, where each x is a
pair's difference over the square root of 2. With a fresh control each the keeps are as many, and
the nights with any are printed beside them.

Real changes. Three of the 100, in a place drawn every night, are worth what the records say: the
cost of the worse form of `out_proj` or none, `W_query` or none, four heads or one; at 300 steps one
head is the better, at 4800 four are. What is kept stays, with the loss that it was seen with. What
is not kept is proposed again in the next night, the real ones among new nulls; "spent" counts on.
Counted: the share of first nights that keep each; the share that is right, with all three and no
null; the nights until all three are kept (median, at most 20), with their runs: one for each idea,
or 2 n.

Expected: one run each keeps 4.2 of 100 (the sum of 1/k from 2 to 101) and believes in 2.5 standard
deviations; the same with one rounding, whose deviation is about that of seeds. `compare` keeps up
to 2.5 of 100 at 5 % (half of the errors are "worse"), and so errs in most nights; spent or even, it
keeps .02, and with 8 pairs finds what is worth 3 standard deviations of a difference or more, but
not `out_proj` after 4800 steps, which is within the margin.
"""

NIGHTS, IDEAS, SEED = 2000, 100, 2026
PAIRS = (3, 5, 8)
MARGIN = 0.015  # nats: that of the records
MOST_NIGHTS = 20
