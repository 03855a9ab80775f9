// The page of a trace: its data and what is shown of it, and the controls. One function holds this file, words.js and
// stages.js, and then calls start(): see template.html.

const trace = JSON.parse(document.getElementById("trace").textContent);
const { steps, options } = trace;
const { applyRules, drawn, sum } = sampling;
const $ = (id) => document.getElementById(id);
const ROWS = 12;
const actual = { temperature: options.temperature, topK: options.top_k, topP: options.top_p, minP: options.min_p };
let rules = { ...actual };
let at = 0;
let playing = null;
let all = false; // whether every stored candidate is listed
let earlier = false; // whether the whole context is listed

// ---- Going from step to step ---------------------------------------------------------------------------------------

function show(i) {
  at = Math.max(0, Math.min(steps.length - 1, i));
  const step = steps[at];
  const words = `Step ${at + 1} of ${steps.length}`;
  $("slider").value = at + 1;
  $("slider").setAttribute("aria-valuetext", `${words}: ${spoken(step.chosen.token)}`);
  fill("where", el("span", {}, "Step "), `${at + 1} of ${steps.length}`);
  $("said").textContent = `${words}: chose ${spoken(step.chosen.token)}, ${percent(step.chosen.probability)}`;
  $("back").disabled = at === 0;
  $("next").disabled = at === steps.length - 1;
  markText();
  renderContext(step);
  renderNetwork(step);
  renderLogits(step);
  renderSample(step);
  renderAppend(step);
}

function play(on) {
  clearInterval(playing);
  playing = null;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
  if (!on) return;
  if (at === steps.length - 1) show(0);
  playing = setInterval(() => {
    show(at + 1);
    if (at === steps.length - 1) play(false);
  }, 1200);
}

// ---- The controls ---------------------------------------------------------------------------------------------------

const CONTROLS = {
  temperature: { key: "temperature", read: Number, write: (value) => value, say: (value) => (value === 0 ? "greedy" : String(+value.toFixed(3))) },
  "top-k": { key: "topK", read: (x) => (Number(x) > trace.candidates ? null : Number(x)), write: (value) => value ?? trace.candidates + 1, say: (value) => (value == null ? "off" : String(value)) },
  "top-p": { key: "topP", read: (x) => (Number(x) >= 1 ? null : Number(x)), write: (value) => value ?? 1, say: (value) => (value == null ? "off" : String(+value.toFixed(4))) },
};

function setControls() {
  for (const [id, control] of Object.entries(CONTROLS)) {
    const value = rules[control.key];
    $(id).value = control.write(value);
    $(id).setAttribute("aria-valuetext", control.say(value));
    $(id).nextElementSibling.textContent = control.say(value);
  }
}

function start() {
  const rule = [
    actual.temperature === 0 ? "greedy" : `temperature ${actual.temperature}`,
    actual.topK != null && actual.temperature !== 0 ? `top-k ${actual.topK}` : "", actual.topP != null ? `top-p ${actual.topP}` : "", actual.minP ? `min-p ${actual.minP}` : "",
    options.max_kv_size ? `cache of ${options.max_kv_size} positions, ${options.keep} pinned` : "", `seed ${trace.seed}`,
  ];
  fill("about", [trace.model, ...rule.filter(Boolean)].join(" · "));
  if (!steps.length) {
    fill("tokens", "No token was generated: the prompt fills the model's table of positions.");
    document.querySelector("nav").hidden = document.querySelector("main").hidden = true;
    return;
  }
  buildText();
  $("slider").max = steps.length;
  $("top-k").max = trace.candidates + 1; // the last one turns it off
  $("temperature").max = Math.max(2, actual.temperature);
  for (const [id, control] of Object.entries(CONTROLS)) {
    $(id).addEventListener("input", () => {
      rules = { ...rules, [control.key]: control.read($(id).value) };
      setControls();
      renderSample(steps[at]);
    });
  }
  $("reset").addEventListener("click", () => { rules = { ...actual }; setControls(); renderSample(steps[at]); });
  $("more").addEventListener("click", () => { all = !all; renderSample(steps[at]); });
  $("back").addEventListener("click", () => { play(false); show(at - 1); });
  $("next").addEventListener("click", () => { play(false); show(at + 1); });
  $("play").addEventListener("click", () => play(playing === null));
  $("slider").addEventListener("input", () => { play(false); show(Number($("slider").value) - 1); });
  document.addEventListener("keydown", onKey);
  setControls();
  show(0);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select")) return;
  const row = event.target.closest("#candidates tbody tr");
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
  if (row && event.key === "ArrowDown") row.nextElementSibling?.focus();
  else if (row && event.key === "ArrowUp") row.previousElementSibling?.focus();
  else if (event.key === "p") play(playing === null);
  else if (event.key in moves) { play(false); show(moves[event.key]); }
  else return;
  event.preventDefault();
}

// ---- Light and dark -------------------------------------------------------------------------------------------------

const root = document.documentElement;
const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
$("theme").addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; });
