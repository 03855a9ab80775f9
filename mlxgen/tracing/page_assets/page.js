// The page: its runs, one or two, the steps that all of them show, the keys, light and dark. See template.html.

const data = JSON.parse(document.getElementById("trace").textContent);
const traces = data.runs ?? [data];
const byId = (id) => document.getElementById(id);
let playing = null;

// ---- Two runs: the second has a copy of every element, whose ids end in -2 ------------------------------------------

const LINKS = ["id", "for", "aria-labelledby", "aria-controls"];

function addRun(suffix) {
  for (const id of ["text", "run"]) {
    const copy = byId(id).cloneNode(true);
    for (const element of [copy, ...copy.querySelectorAll("*")]) {
      for (const name of LINKS) if (element.hasAttribute(name)) element.setAttribute(name, element.getAttribute(name) + suffix);
    }
    byId(id).after(copy);
  }
}

if (traces.length > 1) addRun("-2");
const views = traces.map((trace, i) => view(trace, i ? `-${i + 1}` : "", (step) => go(step)));
const last = Math.max(...views.map((one) => one.last));
const NAMES = "AB";

// ---- Going from step to step ---------------------------------------------------------------------------------------

/** Show a step in every run: the same one, or each its own. A run that has ended stays at its end. */
function go(...places) {
  views.forEach((one, i) => one.show(places[i] ?? places[0]));
  const at = views.map((one) => one.at());
  const furthest = Math.max(...at);
  const told = views.map((one, i) => (views.length > 1 ? `${NAMES[i]} ` : "") + one.spoken()).join("; ");
  byId("slider").value = furthest + 1;
  byId("slider").setAttribute("aria-valuetext", `Step ${furthest + 1} of ${last + 1}: ${told}`);
  const label = document.createElement("span");
  label.textContent = "Step ";
  const apart = at.some((place) => place !== furthest) && at.length > 1 && views.every((one, i) => at[i] < one.last);
  byId("where").replaceChildren(label, apart ? at.map((place) => place + 1).join(" and ") : `${furthest + 1} of ${last + 1}`);
  byId("said").textContent = `Step ${furthest + 1} of ${last + 1}: ${told}`;
  byId("back").disabled = at.every((place) => place <= 0);
  byId("next").disabled = views.every((one, i) => at[i] >= one.last);
}

const move = (by) => go(...views.map((one) => one.at() + by));
const atEnd = () => byId("next").disabled;

function play(on) {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = on ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(on));
  if (!on) return;
  if (atEnd()) go(0);
  playing = setInterval(() => {
    move(1);
    if (atEnd()) play(false);
  }, 1200);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select")) return;
  const row = event.target.closest(".candidates tbody tr");
  const moves = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), Home: () => go(0), End: () => go(last) };
  if (row && event.key === "ArrowDown") row.nextElementSibling?.focus();
  else if (row && event.key === "ArrowUp") row.previousElementSibling?.focus();
  else if (event.key === "p") play(playing === null);
  else if (event.key in moves) { play(false); moves[event.key](); }
  else return;
  event.preventDefault();
}

function start() {
  byId("about").textContent = views.length > 1 ? "Two runs of one prompt, side by side" : views[0].about;
  views.forEach((one, i) => one.start(views.length > 1 ? NAMES[i] : null));
  document.body.classList.toggle("pair", views.length > 1);
  if (last < 0) {
    document.querySelector("nav").hidden = document.querySelector("main").hidden = true;
    return;
  }
  byId("slider").max = last + 1;
  byId("back").addEventListener("click", () => { play(false); move(-1); });
  byId("next").addEventListener("click", () => { play(false); move(1); });
  byId("play").addEventListener("click", () => play(playing === null));
  byId("slider").addEventListener("input", () => { play(false); go(Number(byId("slider").value) - 1); });
  document.addEventListener("keydown", onKey);
  go(0);
  if (views.length > 1) showParting(data.parting);
}

// ---- Where two runs part --------------------------------------------------------------------------------------------

function showParting(parting) {
  byId("parting").hidden = false;
  if (!parting) {
    byId("parting-says").textContent = "The two runs do not part: they write the same, as far as both go.";
    byId("parting-go").hidden = true;
    return;
  }
  const places = [parting.first, parting.second];
  const where = parting.by === "token" ? `The runs part at step ${parting.first + 1}. ` : "The texts part. ";
  byId("parting-says").replaceChildren(where, ...views.flatMap((one, i) => {
    const other = views[1 - i].chosen(places[1 - i]);
    return one.parts(places[i], parting.by === "token" ? other : null, `${NAMES[i]} `, i ? NAMES[0] : NAMES[1]);
  }));
  const there = () => { play(false); go(...places.map((place, i) => place ?? views[i].last)); };
  byId("parting-go").addEventListener("click", there);
  there();
}

// ---- Light and dark -------------------------------------------------------------------------------------------------

const root = document.documentElement;
const preferred = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.style.colorScheme || (preferred.matches ? "dark" : "light")) === "dark";
byId("theme").addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; views.forEach((one) => one.recolour()); });
preferred.addEventListener("change", () => views.forEach((one) => one.recolour()));
