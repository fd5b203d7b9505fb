// Facts about a text before any about attention: its loss, the words that are new to the model, and
// which of two models predicts it better.
import { number } from "./draw.js";
import { losses, mean } from "./model.js";
import { sum } from "./tensor.js";
import { encoder } from "./tokenizer.js";

/** Returns the losses of the text's own tokens in nats, without the document's start or a first token. */
export const textLosses = (trace) => losses(trace).slice(firstScored(trace) - 1);

/** Returns the index of the first token with a loss. */
export const firstScored = (trace) => Math.max(trace.start, 1);

export const lossOf = (trace) => (trace.tokens.length > firstScored(trace) ? mean(textLosses(trace)) : NaN);

export function bitsPerByte(model, trace) {
  const bytes = Array.from(trace.tokens.slice(firstScored(trace)), (token) => model.tokenizer.bytes[token].length);
  return sum(textLosses(trace)) / Math.LN2 / sum(bytes);
}

/**
 * Returns true if the losses of two models on each token decide which model is better.
 *
 * They do if the mean difference is larger than twice its standard error, s / sqrt(n), so that a
 * single surprising token cannot decide.
 */
export function comparison(gaps) {
  const difference = mean(gaps);
  const variance = sum(gaps.map((gap) => (gap - difference) ** 2)) / (gaps.length - 1);
  const error = 2 * Math.sqrt(variance / gaps.length);
  return { difference, error, tells: gaps.length > 1 && Math.abs(difference) > error };
}

const WORD = /[\p{L}\p{N}][\p{L}\p{N}\p{M}]*/gu;

/**
 * Returns the words of a text that are not in the training text; [] if its words are unknown.
 *
 * A last word that begins one of them may not be finished.
 */
export function unknownWords(text, words) {
  const known = [...(words ?? [])];
  const isBegun = ({ 0: word, index }) => index + word.length === text.length && known.some((other) => other.startsWith(word));
  return words ? Array.from(text.matchAll(WORD)).filter((found) => !words.has(found[0]) && !isBegun(found)) : [];
}

/** Returns a boolean for each token of a trace: true if it is part of one of these words. */
export function tokensOfWords(model, trace, text, found) {
  const bytes = (part) => encoder.encode(part).length;
  const lengths = Array.from(trace.tokens, (token) => model.tokenizer.bytes[token].length);
  // Places are counted from the end, which a text that is cut keeps; a character has at least one byte.
  const reach = sum(lengths);
  const shown = found.filter(({ 0: word, index }) => text.length - index - word.length < reach);
  const places = shown.map(({ 0: word, index }) => [-bytes(text.slice(index)), -bytes(text.slice(index + word.length))]);
  let end = 0;
  return Array.from(trace.tokens, (_, i) => i).reverse().map((i) => {
    const start = end - lengths[i];
    const marked = i >= trace.start && places.some(([from, to]) => start < to && end > from);
    end = start;
    return marked;
  }).reverse();
}

/** Returns a warning for a text that costs more than guessing, or has words that the model never read. */
export function warningOf(model, trace, found, name, texts) {
  const { read } = model.manifest;
  const [loss, guess] = [lossOf(trace), Math.log(model.config.vocab_size)];
  const words = [...new Set(found.map(([word]) => `“${word.length > 40 ? `${word.slice(0, 40)}…` : word}”`))];
  const list = words.length ? ` Words that it has never read: ${words.slice(0, 8).join(", ")}${words.length > 8 ? ", ..." : ""}.` : "";
  if (!(loss > guess)) return list && `${name} has only read ${read}.${list}`;
  const examples = texts > 1 ? `Try text 1 to ${texts}, or train` : "Train";
  return `${name} has only read ${read}: this text costs it ${number(loss)} nats per token, and guessing among its ` +
    `${model.config.vocab_size.toLocaleString("en")} tokens would cost ${number(guess)}.${list} ${examples} on your own: mlx-attn train --data notes/`;
}
