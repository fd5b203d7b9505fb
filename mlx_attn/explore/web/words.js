// Technical terms, explained in place: on hover, on focus and on touch.
import { element } from "./draw.js";

const MEANINGS = {
  loss: "How much the text surprises the model: the mean of −ln p over its tokens, p being the probability that the model gave to the token that came",
  nats: "The unit of the loss: a token of probability p costs −ln p nats, so 0.69 nats is a choice between two, and 0 is certainty",
  bits: "The loss in bits for each byte of the text, which can be compared between models whose tokens differ",
  head: "A layer attends several times at once, each time with its own q, k and v: each of these is a head",
};

/** Creates a term with its meaning. */
export const term = (key, word) => explained(element("abbr", {}, word), MEANINGS[key]);

/** Adds the meaning to each term in a part of the page. */
export function explain(part) {
  for (const abbr of part.querySelectorAll("abbr[data-term]")) explained(abbr, MEANINGS[abbr.dataset.term]);
}

export function explained(abbr, meaning) {
  Object.assign(abbr, { className: "term", title: meaning, tabIndex: 0 });
  abbr.dataset.meaning = meaning;
  return abbr;
}
