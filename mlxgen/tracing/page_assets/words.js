// Elements, and numbers and tokens as they are shown.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== ""));
  return element;
}

const fill = (id, ...children) => $(id).replaceChildren(...children.flat().filter((child) => child != null));
const text = (token) => trace.pieces[token] ?? "";
const count = (n) => n.toLocaleString("en");
const tokens = (n) => `${count(n)} ${n === 1 ? "token" : "tokens"}`;
const MARKS = { " ": "·", "\n": "↵", "\t": "→", "\r": "␍" };

/** A token's text with its spaces and line breaks visible, never as markup. */
function shown(token) {
  const parts = [];
  for (const character of text(token)) {
    const plain = !(character in MARKS) && !/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(character);
    if (plain && typeof parts.at(-1) === "string") parts.push(parts.pop() + character);
    else if (plain) parts.push(character);
    else parts.push(el("span", { class: "mark" }, MARKS[character] ?? `U+${character.codePointAt(0).toString(16).padStart(4, "0").toUpperCase()}`));
  }
  return parts.length ? parts : [el("span", { class: "mark" }, "(empty)")];
}

/** The same in words, for those who listen. */
const spoken = (token) => text(token).replaceAll("\n", " line break ").replace(/^ /, "space ") || "empty token";
const quoted = (token) => el("code", { class: "t" }, shown(token));

function percent(p) {
  if (p === 0) return "0%";
  if (p < 0.00005) return "<0.01%";
  return `${(100 * p).toFixed(2)}%`;
}

function power(logprob) {
  const exponent = Math.floor(logprob / Math.LN10);
  if (exponent >= -3) return Math.exp(logprob).toPrecision(3);
  const raised = String(exponent).replace(/./g, (digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]));
  return `${Math.exp(logprob - exponent * Math.LN10).toFixed(2)} × 10${raised}`;
}

function bytes(n) {
  if (n < 1000) return `${n} bytes`;
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} kB`;
  return `${(n / 1e6).toFixed(1)} MB`;
}

const time = (seconds) => (seconds < 0.0995 ? `${(1000 * seconds).toFixed(seconds < 0.00995 ? 2 : 1)} ms` : `${seconds.toFixed(2)} s`);
const spans = (list) => list.map(([a, b]) => (b - a === 1 ? `${a}` : `${a}–${b - 1}`)).join(", ");
const signed = (x, digits) => x.toFixed(digits).replace("-", "−");

const differs = () => Object.keys(actual).some((name) => actual[name] !== rules[name]);
