"""Text: where it comes from, how it becomes tokens, and the corpus that training reads.

`corpus.prepare` is the entrance. Behind it: `sources` reads any text, `downloads` fetches the named
ones, `tokenizers` turns text into token ids and back, `tales` writes stories of known entropy,
`tasks` draws probing tasks of known floor.
"""
