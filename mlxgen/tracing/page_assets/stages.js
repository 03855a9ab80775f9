// The five stages of a step: context, transformer, logits, sample, append.

// ---- The text and the context ------------------------------------------------------------------------------------

const promptLength = trace.prompt.length;
const everything = [...trace.prompt, ...steps.map((step) => step.chosen.token)];

function buildText() {
  const box = $("tokens");
  trace.prompt.forEach((token) => box.append(...chance(token), el("span", { class: "token prompt", title: `token ${token}, prompt` }, shown(token)), ...breaks(token)));
  steps.forEach((step, i) => {
    const token = step.chosen.token;
    const button = el("button", { type: "button", class: "token", "data-step": i, "aria-label": `Step ${i + 1}: ${spoken(token)}`, title: `step ${i + 1}, token ${token}, ${percent(step.chosen.probability)}` }, shown(token));
    button.addEventListener("click", () => go(i));
    box.append(...chance(token), button, ...breaks(token));
  });
}

/** A word may go to the next line; its visible space alone would not let it. */
const chance = (token) => (/^\s/.test(text(token)) ? [el("wbr")] : []);
const breaks = (token) => (text(token).includes("\n") ? [el("br")] : []);

function markText() {
  $("tokens").querySelectorAll("button").forEach((button, i) => {
    button.classList.toggle("later", i > at);
    if (i === at) {
      button.setAttribute("aria-current", "step");
      const box = $("tokens");
      if (box.scrollHeight > box.clientHeight) box.scrollTop = button.offsetTop - box.offsetTop - box.clientHeight / 2;
    } else button.removeAttribute("aria-current");
  });
}

const LISTED = 48;

function renderContext(step) {
  const made = step.context - promptLength;
  const parts = [`${count(promptLength)} from the prompt`, made ? `${count(made)} generated` : "none generated yet"];
  fill("context-says", `The model reads ${tokens(step.context)}: ${parts.join(", ")}.`);
  const dropped = inSpans(step.cache.dropped);
  const first = earlier || step.context <= LISTED ? 0 : step.context - LISTED;
  const chips = [];
  if (step.context > LISTED) {
    const toggle = el("button", { type: "button", class: "quiet" }, earlier ? "fewer" : `… ${count(first)} earlier`);
    toggle.addEventListener("click", () => { earlier = !earlier; renderContext(steps[at]); });
    chips.push(toggle);
  }
  for (let i = first; i < step.context; i++) {
    const gone = dropped(i);
    const kind = `chip ${i < promptLength ? "prompt" : "made"}${gone ? " dropped" : i < step.cache.pinned ? " pinned" : ""}`;
    const spelling = trace.spellings[everything[i]];
    const title = `token ${i} of the context, id ${everything[i]}${spelling ? `, in the vocabulary ${spelling}` : ""}${gone ? ", dropped from the cache" : ""}`;
    chips.push(el("span", { class: kind, title }, el("span", {}, shown(everything[i])), el("small", {}, String(everything[i]))));
  }
  fill("context", chips);
}

const inSpans = (list) => (i) => list.some(([a, b]) => a <= i && i < b);

// ---- The network ------------------------------------------------------------------------------------------------

function renderNetwork(step) {
  const { cache } = step;
  const layers = `${trace.n_layer} ${trace.n_layer === 1 ? "layer" : "layers"}`;
  const newest = quoted(everything[step.context - 1]);
  if (at === 0) fill("network-says", `Prefill: the prompt goes through ${layers} once. Each layer keeps a key and a value for every token.`);
  else fill("network-says", "Only the newest token, ", newest, `, goes through the ${layers}. Each adds its key and value to the cache, and reads those of the earlier tokens there.`);
  const pieces = [];
  const cuts = new Set([0, step.context, cache.pinned, step.context - step.processed, ...cache.held.flat(), ...cache.dropped.flat()]);
  const edges = [...cuts].filter((edge) => edge >= 0 && edge <= step.context).sort((a, b) => a - b);
  const dropped = inSpans(cache.dropped);
  for (let i = 0; i + 1 < edges.length; i++) {
    const [a, b] = [edges[i], edges[i + 1]];
    const kind = dropped(a) ? "dropped" : a < cache.pinned ? "pinned" : a >= step.context - step.processed ? "new" : "held";
    pieces.push({ a, b, kind });
  }
  const has = (kind) => pieces.some((piece) => piece.kind === kind);
  const legend = [["pinned", "pinned"], ["held", "held"], ["new", "new in this step"], ["dropped", "dropped"]]
    .filter(([kind]) => has(kind)).map(([kind, words]) => keyed(kind, words));
  const told = [
    cache.slid ? el("p", { class: "notice", id: `slid${suffix}` }, `The table of ${count(trace.n_positions)} positions was full: the context slid. The cache was rebuilt from tokens ${spans(cache.held)}.`) : null,
    cache.dropped.length ? el("p", { id: `dropped${suffix}` }, `The cache holds tokens ${spans(cache.held)}${cache.pinned ? `, of which the first ${cache.pinned} are pinned` : ""}. Dropped: ${spans(cache.dropped)}. The model no longer sees them.`) : null,
  ];
  fill("cache", el("h3", {}, "The cache, along the context"),
    el("div", { class: "strip", role: "img", "aria-label": `Of ${tokens(step.context)} the cache holds ${count(cache.after)}${cache.dropped.length ? `; dropped are ${spans(cache.dropped)}` : ""}` },
      pieces.map(({ a, b, kind }) => el("i", { class: kind, style: `flex: ${b - a} 0 0`, title: `${kind}: ${spans([[a, b]])}` }))),
    el("p", { class: "legend muted" }, legend), ...told.filter(Boolean),
    figures([["Positions", `${count(cache.before)} → ${count(cache.after)}`], ["In each layer", bytes(cache.layer_bytes)], [`In all ${layers}`, bytes(cache.layers * cache.layer_bytes)]]));
  renderLens(step);
  renderAttention(step);
}

const keyed = (kind, words) => el("span", {}, el("i", { class: `key ${kind}` }), words);
const figures = (list) => el("dl", { class: "figures" }, list.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

function renderLens(step) {
  if (!step.lens.length) return fill("lens");
  const rows = step.lens.map(([layer, token, p, chosen]) =>
    el("tr", { class: token === step.chosen.token ? "chosen" : "", title: `the chosen token has ${percent(chosen)} here` },
      el("td", {}, shown(token)), el("td", {}, bar(p)), el("td", {}, percent(p)), el("td", {}, String(layer))));
  return fill("lens", el("h3", {}, "Logit lens: what each layer would choose if it were the last"),
    el("table", {}, el("thead", {}, el("tr", {}, ["Token", "", "Probability", "Layer"].map((name, i) => el("th", { scope: "col", class: i === 1 ? "wide" : "" }, name)))), el("tbody", {}, rows)));
}

const bar = (p, kind = "hard") => el("div", { class: "bars", "aria-hidden": "true" }, el("i", { class: kind, style: `width: ${100 * p}%; inset-block: 0.15rem` }));

// ---- Logits and candidates ----------------------------------------------------------------------------------------

function renderLogits(step) {
  const perplexity = 2 ** step.entropy;
  fill("logits-says", `The network gives each of the ${count(trace.vocab_size)} tokens of the vocabulary a score. As probabilities their entropy is ${step.entropy.toFixed(2)} bits (perplexity ${perplexity < 9.95 ? perplexity.toFixed(1) : count(Math.round(perplexity))}).`);
  const raw = step.raw ?? step.logits;
  const order = raw.map((_, i) => i).sort((a, b) => raw[b] - raw[a]).slice(0, 8);
  const [most, least] = [raw[order[0]], Math.min(0, ...step.rest.groups.map((group) => group[1]))];
  $("logits").tBodies[0].replaceChildren(...order.map((i) =>
    el("tr", { class: step.ids[i] === step.chosen.token ? "chosen" : "" }, el("td", {}, shown(step.ids[i])),
      el("td", {}, bar(Math.max(0.01, (raw[i] - least) / (most - least || 1)))), el("td", {}, signed(raw[i], 2)), el("td", {}, percent(Math.exp(raw[i] - step.log_total))))));
}

const BANS = ["no_repeat_ngram", "bad_words", "min_tokens", "suppress_tokens"];

const RULES = {
  adjust: ["Penalties, bias", "come off the logits first"],
  no_repeat_ngram: ["No-repeat-ngram", "bans repetitions"],
  bad_words: ["Bad words", "bans what would complete one"],
  min_tokens: ["Min-tokens", "bans the end"],
  suppress_tokens: ["Suppress-tokens", "bans these"],
  temperature: ["Temperature", "divides the logits"],
  top_k: ["Top-k", "keeps the highest"],
  top_p: ["Top-p", "keeps the leading ones up to this sum"],
  min_p: ["Min-p", "keeps those close to the best"],
  typical_p: ["Typical-p", "keeps those of expected surprise up to this sum"],
  epsilon_cutoff: ["Epsilon-cutoff", "keeps those at least as probable"],
  eta_cutoff: ["Eta-cutoff", "keeps those at least as probable, or less where many are possible"],
  greedy: ["Greedy", "takes the highest"],
};

function effect({ name, value, kept, share }) {
  if (name === "temperature") {
    const does = value < 1 ? "the likely become likelier" : value > 1 ? "the unlikely gain" : "no change";
    return `logits divided by ${+value.toFixed(3)}: ${does}`;
  }
  if (name === "adjust") return `logits changed; ${tokens(kept)} left`;
  if (BANS.includes(name)) return `${tokens(kept)} left, ${percent(share)} of the probability`;
  if (name === "greedy") return `the highest logit, ${percent(share)} of the probability`;
  const share_ = name === "top_p" ? `their sum is ${share.toFixed(4)} at the cut` : `${percent(share)} of the probability`;
  return `keeps ${tokens(kept)}, ${share_}`;
}

function renderSample(step) {
  const result = applyRules(step, rules);
  const changed = differs();
  $("whatif").hidden = !changed;
  $("reset").disabled = !changed;
  const trail = [...step.rules.filter(([name]) => name === "adjust" || BANS.includes(name)).map(([name, value, kept, share]) => ({ name, value, kept, share })), ...result.trail];
  const draw = rules.temperature === 0 ? [] : [el("li", { "data-rule": "draw" }, el("b", {}, "Draw"), el("span", {}, "what is left is scaled to a sum of 1, then one is drawn"))];
  fill("rules", trail.map((entry) => {
    const [name] = RULES[entry.name];
    const value = entry.value == null || entry.name === "greedy" ? "" : ` ${+entry.value.toPrecision(6)}`;
    return el("li", { "data-rule": entry.name, "data-kept": entry.kept, "data-share": entry.share.toPrecision(8) }, el("b", {}, name + value), el("span", {}, effect(entry)));
  }), draw);
  const token = drawn(step, result, rules.temperature);
  if (!changed) fill("outcome", "These are the rules of the run. Move one and see.");
  else if (token == null && step.random == null) fill("outcome", "The run had no random number to draw with here.");
  else if (token == null) fill("outcome", "So many tokens are kept that the draw cannot be told here.");
  else if (rules.temperature === 0) fill("outcome", "Chosen would be ", quoted(token), ".");
  else fill("outcome", "With the same random number, ", quoted(token), token === step.chosen.token ? " again." : ` instead of `, token === step.chosen.token ? "" : quoted(step.chosen.token));
  $("outcome").dataset.token = token ?? "";
  const listed = all ? step.ids.map((_, i) => i) : step.ids.map((_, i) => i).slice(0, ROWS);
  const mine = step.ids.indexOf(step.chosen.token);
  if (!listed.includes(mine)) listed.push(mine);
  const model = modelProbabilities(step);
  const most = Math.max(...model, ...result.final);
  const rows = listed.map((i) => {
    const gone = result.final[i] === 0;
    const row = el("tr", { tabindex: 0, class: `${gone ? "cut " : ""}${i === mine ? "chosen" : ""}`, "data-token": step.ids[i], "data-p": result.final[i].toPrecision(8), "data-tempered": result.tempered[i].toPrecision(8) },
      el("td", {}, shown(step.ids[i])),
      el("td", {}, el("div", { class: "bars", "aria-hidden": "true" }, el("i", { class: "soft", style: `width: ${(100 * model[i]) / most}%` }), el("i", { class: "hard", style: `width: ${(100 * result.final[i]) / most}%` }))),
      el("td", {}, percent(model[i])), el("td", {}, gone ? "cut" : percent(result.final[i])));
    const tell = () => describe(step, result, model, i);
    row.addEventListener("mouseenter", tell);
    row.addEventListener("focus", tell);
    return row;
  });
  $("candidates").tBodies[0].replaceChildren(...rows);
  $("candidates").classList.toggle("open", all);
  $("more").textContent = all ? "Show fewer" : `Show all ${step.ids.length}; the other ${count(step.rest.count)} have ${percent(step.rest.probability)} together`;
  describe(step, result, model, mine);
  renderDraw(step, result);
}

const modelProbabilities = (step) => (step.raw ?? step.logits).map((logit) => Math.exp(logit - step.log_total));

function describe(step, result, model, i) {
  const fate = result.cutBy[i] ? `cut by ${RULES[result.cutBy[i]][0].toLowerCase()}` : `kept, drawn with ${percent(result.final[i])}`;
  const adjusted = step.raw && step.raw[i] !== step.logits[i] ? `, ${signed(step.logits[i], 3)} after penalties and bias` : "";
  const tempered = rules.temperature === 0 ? "" : `, after the temperature ${percent(result.tempered[i])}`;
  const number = step.ids[i] === step.chosen.token ? `rank ${count(step.chosen.rank)}` : `number ${i + 1}`;
  fill("detail", quoted(step.ids[i]), step.ids[i] === step.chosen.token ? " (chosen)" : "",
    ` id ${step.ids[i]}: logit ${signed((step.raw ?? step.logits)[i], 3)}${adjusted}; ${number} of ${count(trace.vocab_size)}; model ${percent(model[i])}${tempered}; ${fate}.`);
  $("candidates").querySelectorAll("tbody tr").forEach((row) => row.classList.toggle("shown", Number(row.dataset.token) === step.ids[i]));
}

function renderDraw(step, result) {
  if (step.random == null || rules.temperature === 0) {
    return fill("draw", el("p", { class: "muted" }, rules.temperature === 0 ? "Nothing is random here: greedy takes the highest." : ""));
  }
  const line = step.ids.map((id, i) => [id, result.final[i]]).filter(([, p]) => p > 0).sort((a, b) => a[0] - b[0]);
  const hit = drawn(step, result, rules.temperature);
  const whole = result.restFinal === 0;
  const ends = sums(line.map(([, p]) => p));
  return fill("draw", el("h3", {}, "The draw"),
    el("p", {}, `The kept tokens lie on a line from 0 to 1 in order of their ids, each as long as it is probable. The step's random number, ${step.random.toFixed(4)}, falls on `, whole ? quoted(hit) : quoted(step.chosen.token), "."),
    whole ? el("div", { class: "line", role: "img", "aria-label": `Random number ${step.random.toFixed(4)} on the line of kept tokens` },
      el("div", { class: "strip" }, line.map(([id, p], i) => el("i", { class: id === hit ? "chosen" : "", style: `left: ${100 * ends[i]}%; width: ${100 * p}%`, title: `${text(id)} ${percent(p)}` }))),
      el("div", { class: "pin", style: `left: ${100 * step.random}%` })) : null,
    whole ? el("div", { class: "ends" }, el("span", {}, "0"), el("span", {}, "1")) : null);
}

// ---- Append -------------------------------------------------------------------------------------------------------

const REASONS = { stop: "It ends the text.", length: "The limit of tokens is reached.", context: "The table of positions is full." };

function renderAppend(step) {
  const last = step.finish ? ` ${REASONS[step.finish]}` : " The next step processes it.";
  fill("append-says", quoted(step.chosen.token), ` joins the text, now ${tokens(step.context + 1)} long. It has no place in the cache yet, which holds ${count(step.cache.after)} positions.${last}`);
  const { rank, probability, rule_probability: ruled } = step.chosen;
  $("figures").replaceChildren(...figures([
    ["Under the model", percent(probability)], ["Under the rules", percent(ruled)], ["Rank", `${count(rank)} of ${count(trace.vocab_size)}`], ["Entropy after rules", `${step.rule_entropy.toFixed(2)} bits`],
  ]).children);
  renderPath(step);
  const names = ["context", "transformer", "logits", "sample", "append"];
  const total = sum(step.seconds);
  fill("time", el("h3", {}, `Time: ${time(total)}`),
    el("div", { class: "strip", "aria-hidden": "true" }, step.seconds.map((part, i) => el("i", { class: `s${i}`, style: `flex: ${part / (total || 1)} 0 0` }))),
    el("p", { class: "legend muted" }, names.map((name, i) => keyed(`s${i}`, `${name} ${time(step.seconds[i])}`))));
}

const sums = (list) => list.reduce((done, x) => [...done, done.at(-1) + x], [0]);

function renderPath(step) {
  const run = sums(steps.map((one) => one.chosen.logprob));
  const greedy = trace.greedy ? sums(trace.greedy.logprobs) : null;
  const [W, H] = [600, 110];
  const low = Math.min(...run, ...(greedy ?? []), -1e-9);
  const long = Math.max(run.length, greedy?.length ?? 0) - 1;
  const [x, y] = [(i) => (W * i) / long, (v) => (H * v) / low];
  const mark = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const points = (list) => list.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const svg = mark("svg", { viewBox: `-4 -6 ${W + 8} ${H + 12}`, role: "img", "aria-label": `Log-probability of the text after each step: ${run[at + 1].toFixed(2)} here` });
  svg.append(mark("line", { class: "zero", x1: 0, x2: W, y1: 0, y2: 0 }), mark("line", { class: "at", x1: x(at + 1), x2: x(at + 1), y1: -4, y2: H + 4 }));
  const there = greedy ? Math.min(at + 1, greedy.length - 1) : 0;
  if (greedy) svg.append(mark("polyline", { class: "greedy", points: points(greedy) }), mark("circle", { class: "greedy", cx: x(there), cy: y(greedy[there]), r: 4 }));
  svg.append(mark("polyline", { class: "run", points: points(run) }), mark("circle", { class: "run", cx: x(at + 1), cy: y(run[at + 1]), r: 4.5 }));
  const values = (list, i) => `${power(list[i])} (ln ${signed(list[i], 2)})`;
  fill("path", el("h3", {}, "Probability of the text so far, as its log"), svg,
    el("p", { class: "legend muted" }, keyed("now", `this text ${values(run, at + 1)}`), greedy ? keyed("hard", `greedy path ${values(greedy, there)}`) : ""),
    greedy ? el("p", { class: "muted", style: "font-size: 0.85rem; margin: 0.2rem 0 0" }, "Greedy would have written: ", el("code", {}, trace.greedy.ids.slice(0, there).flatMap((token, i) => i === there - 1 ? el("b", {}, shown(token)) : shown(token)))) : null);
  return step;
}
