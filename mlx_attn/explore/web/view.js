// The page: what is shown, and what happens when something is chosen.
import { intact } from "./attention.js";
import { GPT, losses, mean } from "./model.js";
import { bytesOf, numbersOf } from "./tensor.js";
import { tokenizerFrom } from "./tokenizer.js";

const data = JSON.parse(document.getElementById("data").textContent);
const models = data.models.map((manifest, i) => {
  const base64 = document.getElementById(`weights-${i}`);
  const numbers = numbersOf(bytesOf(base64.textContent), manifest.dtype);
  base64.remove();
  return Object.assign(new GPT(manifest, numbers), { tokenizer: tokenizerFrom(manifest.tokenizer) });
});

globalThis.explorer = { models, intact, losses, mean };
