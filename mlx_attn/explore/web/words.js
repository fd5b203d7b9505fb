// Words of this field, each with its meaning where it stands: on hover, on focus and on touch.
import { element } from "./draw.js";

const MEANINGS = {
  loss: "How much the text surprises the model: the mean of −ln p over its tokens, p being the probability that the model gave to the token that came",
  nats: "The unit of the loss: a token of probability p costs −ln p nats, so 0.69 nats is a choice between two, and 0 is certainty",
  bits: "The loss in bits for each byte of the text, which can be compared between models whose tokens differ",
  head: "A layer attends several times at once, each time with its own q, k and v: each of these is a head",
};

/** A word with its meaning. */
export const term = (key, word) => explained(element("abbr", {}, word), key);

/** Gives a meaning to each element of a part of the page that asks for one. */
export function explain(part) {
  for (const abbr of part.querySelectorAll("abbr[data-term]")) explained(abbr, abbr.dataset.term);
}

function explained(abbr, key) {
  Object.assign(abbr, { className: "term", title: MEANINGS[key], tabIndex: 0 });
  abbr.dataset.meaning = MEANINGS[key];
  return abbr;
}
