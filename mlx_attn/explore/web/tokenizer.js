// Encodes text to token ids and back, with the same ids as mlx_attn/text/.

export const encoder = new TextEncoder();
const latin = (bytes) => Array.from(bytes, (value) => String.fromCharCode(value)).join(""); // a key of a table
const pieceBytes = (text) => encoder.encode(text);

/** Creates a run's tokenizer: encode(text) -> ids, bytes[token]. */
export function tokenizerFrom(settings) {
  return KINDS[settings.kind](settings);
}

const KINDS = {
  char: ({ characters }) => byCharacter(characters),
  byte: () => ({ bytes: Array.from({ length: 256 }, (_, value) => Uint8Array.of(value)), encode: (text) => Array.from(encoder.encode(text)) }),
  symbols: ({ symbols }) => bySymbol(symbols),
  bpe: (settings) => byPieces(settings, mergePieces),
  unigram: (settings) => byPieces(settings, likeliestPieces),
  gpt2: ({ merges, end }) => byMerges(merges, end),
};

function refuse(unknown, what, hint) {
  const shown = [...new Set(unknown)].map((word) => JSON.stringify(word));
  throw new Error(`${what}: ${shown.slice(0, 8).join(", ")}${shown.length > 8 ? ", ..." : ""}; ${hint}`);
}

function byCharacter(characters) {
  const known = new Map(Array.from(characters, (character, token) => [character, token]));
  return {
    bytes: Array.from(characters, pieceBytes),
    encode(text) {
      const found = Array.from(text);
      const unknown = found.filter((character) => !known.has(character));
      if (unknown.length) refuse(unknown, `not among the ${known.size} characters that this model knows`, "leave them out");
      return found.map((character) => known.get(character));
    },
  };
}

function bySymbol(symbols) {
  const known = new Map([["\n", 0], ...symbols.map((symbol, i) => [symbol, i + 1])]);
  return {
    bytes: [pieceBytes("\n"), ...symbols.map((symbol) => pieceBytes(` ${symbol}`))],
    encode(text) {
      const words = text.match(/\n|[^\s]+/gu) ?? [];
      const unknown = words.filter((word) => !known.has(word));
      if (unknown.length) refuse(unknown, "no symbols of this task", `they are ${symbols[0]} to ${symbols.at(-1)}, with spaces between`);
      return [...(words[0] === "\n" ? [] : [0]), ...words.map((word) => known.get(word))];
    },
  };
}

// SentencePiece. A space belongs to the word after it and is written U+2581; the characters of
// `always` are bytes. Pieces are [text, score]; token 0 is the unknown one, then come 256 bytes.

const WORDS = /[\n\0\u2581]| ?[^ \n\0\u2581]{1,1000}| /gu;
const ALWAYS = new Set(["\n", "\0", "\u2581"]);

function byPieces({ pieces, first_byte, unknown }, segment) {
  const known = new Map();
  pieces.forEach(([text, score, kind], token) => kind === "piece" && known.set(text, { token, score: Math.fround(score) }));
  const asBytes = (text) => Array.from(encoder.encode(text), (value) => first_byte + value);
  const lowest = Math.min(...Array.from(known.values(), ({ score }) => score));
  const longest = Math.max(...Array.from(known.keys(), (piece) => piece.length));
  return {
    bytes: pieces.map(([text, , kind], token) => {
      if (token === unknown) return new Uint8Array();
      return kind === "byte" ? Uint8Array.of(token - first_byte) : pieceBytes(text.replaceAll("\u2581", " "));
    }),
    encode(text) {
      return (text.match(WORDS) ?? []).flatMap((word) => {
        if (ALWAYS.has(word)) return asBytes(word);
        const parts = segment(Array.from(word.replaceAll(" ", "\u2581")), known, lowest, longest);
        return parts.flatMap((part) => known.get(part)?.token ?? asBytes(part));
      });
    },
  };
}

/** Byte-pair encoding: joins the adjacent pair with the highest score, the leftmost of equals. */
function mergePieces(parts, known) {
  for (;;) {
    let best = -1, highest = -Infinity;
    for (let i = 0; i + 1 < parts.length; i++) {
      const score = known.get(parts[i] + parts[i + 1])?.score ?? -Infinity;
      if (score > highest) [best, highest] = [i, score];
    }
    if (best < 0) return parts;
    parts.splice(best, 2, parts[best] + parts[best + 1]);
  }
}

const UNKNOWN_PENALTY = 10;

/** Unigram: returns the segmentation with the highest sum of scores (Viterbi), summed in float32. */
function likeliestPieces(characters, known, lowest, longest) {
  const best = [{ score: 0, start: 0 }];
  const offer = (end, score, start) => {
    if (best[end] === undefined || score > best[end].score) best[end] = { score, start };
  };
  for (let start = 0; start < characters.length; start++) {
    let piece = "";
    for (let end = start; end < characters.length && piece.length < longest; end++) {
      piece += characters[end];
      const found = known.get(piece);
      if (found) offer(end + 1, Math.fround(found.score + best[start].score), start);
    }
    if (!known.has(characters[start])) offer(start + 1, Math.fround(Math.fround(lowest - UNKNOWN_PENALTY) + best[start].score), start);
  }
  const parts = [];
  for (let end = characters.length; end > 0; end = best[end].start) parts.unshift(characters.slice(best[end].start, end).join(""));
  return parts;
}

// The byte-level BPE of GPT-2.

const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const GPT2_WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`, "gu");
const END_OF_TEXT = "<|endoftext|>";

/** Returns the letters for bytes in the list of merges, in the order of their token ids. */
function byteLetters() {
  const between = (first, last) => Array.from({ length: last - first }, (_, i) => first + i);
  const printing = [...between(0x21, 0x7f), ...between(0xa1, 0xad), ...between(0xae, 0x100)];
  const others = between(0, 256).filter((value) => !printing.includes(value));
  const letters = [...printing, ...others.map((_, i) => 0x100 + i)].map((code) => String.fromCodePoint(code));
  return new Map(letters.map((letter, i) => [letter, [...printing, ...others][i]]));
}

function byMerges(merges, end) {
  const values = byteLetters();
  const raw = (letters) => latin(Array.from(letters, (letter) => values.get(letter)));
  const lines = merges.split("\n").filter((line) => line && !line.startsWith("#version"));
  const pairs = lines.map((line) => line.split(" ").map(raw));
  const rank = new Map(pairs.map(([left, right], place) => [`${left}\u0100${right}`, place]));
  const single = Array.from(values.values(), (value) => latin([value]));
  const pieces = [...new Set([...single, ...pairs.map((pair) => pair.join(""))])];
  const token = new Map(pieces.map((piece, id) => [piece, id < end ? id : id + 1]));
  const encodeWord = (word) => joined(latin(encoder.encode(word)).split(""), rank).map((part) => token.get(part));
  const bytes = pieces.map((piece) => Uint8Array.from(piece, (c) => c.charCodeAt(0)));
  return {
    bytes: [...bytes.slice(0, end), pieceBytes(END_OF_TEXT), ...bytes.slice(end)],
    encode: (text) =>
      text.split(END_OF_TEXT).flatMap((passage, number) => [
        ...(number ? [end] : []),
        ...(passage.match(GPT2_WORDS) ?? []).flatMap(encodeWord),
      ]),
  };
}

/** Joins all occurrences of the pair with the lowest rank, until no pair is left. */
function joined(parts, rank) {
  for (;;) {
    let best = Infinity, pair;
    for (let i = 0; i + 1 < parts.length; i++) {
      const place = rank.get(`${parts[i]}\u0100${parts[i + 1]}`);
      if (place < best) [best, pair] = [place, [parts[i], parts[i + 1]]];
    }
    if (!pair) return parts;
    const made = [];
    for (let i = 0; i < parts.length; i++) {
      const here = parts[i] === pair[0] && parts[i + 1] === pair[1];
      made.push(here ? parts[i] + parts[++i] : parts[i]);
    }
    parts = made;
  }
}

// Display of tokens.

const VISIBLE = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** Returns a visible text for a token in a table, with spaces at its ends marked. */
export const shown = (bytes) => label(bytes).replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "∅";

/** Returns a visible text for a token: arrows for line ends, codes for incomplete characters. */
export function label(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.replace(/[\p{C}\u2028\u2029]/gu, (c) => VISIBLE[c] ?? `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  } catch {
    return Array.from(bytes, (value) => (value < 128 ? String.fromCharCode(value) : `\\x${value.toString(16)}`)).join("");
  }
}

/** Returns the text of tokens; with `stream` without a last character that is not complete. */
export function decode(tokenizer, tokens, { stream = false } = {}) {
  const bytes = tokens.flatMap((token) => Array.from(tokenizer.bytes[token]));
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes), { stream });
}
