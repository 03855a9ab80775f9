// One run: its data, what is shown of it, and its controls. The function `view` holds this file, words.js, stages.js and
// heads.js, and is called once for each run: see template.html.

const { steps, options } = trace;
const { applyRules, drawn, sum } = sampling;
const $ = (id) => document.getElementById(id + suffix);
const ROWS = 12;
const actual = { temperature: options.temperature, topK: options.top_k, topP: options.top_p, minP: options.min_p, typicalP: options.typical_p, epsilonCutoff: options.epsilon_cutoff, etaCutoff: options.eta_cutoff };
let rules = { ...actual };
let at = -1; // where there are no steps
let all = false; // whether every stored candidate is listed
let earlier = false; // whether the whole context is listed

function show(i) {
  if (!steps.length) return;
  at = Math.max(0, Math.min(steps.length - 1, i));
  const step = steps[at];
  markText();
  renderContext(step);
  renderNetwork(step);
  renderLogits(step);
  renderSample(step);
  renderAppend(step);
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

function about() {
  const rule = [
    actual.temperature === 0 ? "greedy" : `temperature ${actual.temperature}`,
    actual.topK != null && actual.temperature !== 0 ? `top-k ${actual.topK}` : "", actual.topP != null ? `top-p ${actual.topP}` : "", actual.minP ? `min-p ${actual.minP}` : "",
    actual.typicalP != null ? `typical-p ${actual.typicalP}` : "", actual.epsilonCutoff ? `epsilon-cutoff ${actual.epsilonCutoff}` : "", actual.etaCutoff ? `eta-cutoff ${actual.etaCutoff}` : "",
    options.no_repeat_ngram ? `no-repeat-ngram ${options.no_repeat_ngram}` : "", options.min_tokens ? `min-tokens ${options.min_tokens}` : "",
    options.max_kv_size ? `cache of ${options.max_kv_size} positions, ${options.keep} pinned` : "", `seed ${trace.seed}`,
  ];
  return [trace.model, ...rule.filter(Boolean)].join(" · ");
}

/** Fill in what is the same in each step. name: of the run, where there are two. */
function start(name) {
  if (name) {
    for (const id of ["name", "run-name"]) {
      fill(id, el("b", {}, name), about());
      $(id).hidden = false;
    }
  }
  if (!steps.length) {
    fill("tokens", "No token was generated: the prompt fills the model's table of positions.");
    $("run").hidden = true;
    return;
  }
  buildText();
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
  setControls();
}

// ---- Two runs -------------------------------------------------------------------------------------------------------

/** Mark a step as the one where the runs part, and tell what it chose. other: what the other run chose, if comparable. */
function parts(i, other, name, otherName) {
  if (i == null) return [el("span", {}, el("b", {}, name), "had ended. ")];
  const step = steps[i];
  const button = $("tokens").querySelector(`[data-step="${i}"]`);
  button.classList.add("parts");
  button.title += ", where the runs part";
  const place = other == null ? -1 : step.ids.indexOf(other);
  const odds = place < 0 ? "" : `; ${otherName}’s choice had ${percent(modelProbabilities(step)[place])} here`;
  return [el("span", {}, el("b", {}, name), `chose `, quoted(step.chosen.token), ` with ${percent(step.chosen.probability)}${other == null ? ` at step ${i + 1}` : ""}${odds}. `)];
}

const chosen = (i) => steps[i]?.chosen.token;
const saidNow = () => (steps.length ? `chose ${spoken(steps[at].chosen.token)}, ${percent(steps[at].chosen.probability)}` : "has no steps");
