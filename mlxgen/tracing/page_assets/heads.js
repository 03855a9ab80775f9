// Attention: the heads that were recorded, one of them in full; and where all were, a grid of them on a canvas.

const CELL = { gap: 3, label: 18, least: 14, most: 30 }; // pixels
const grid = el("canvas", { class: "heads", role: "img" });
let lookedAt = 0;
let hovered = null;

function renderAttention(step) {
  if (!step.attention.length) return fill("attention");
  lookedAt = Math.min(lookedAt, step.attention.length - 1);
  const [, , weights] = step.attention[lookedAt];
  const heads = el("select", { id: `head${suffix}` }, step.attention.map(([layer, head], i) => el("option", { value: i, selected: i === lookedAt }, `layer ${layer}, head ${head}`)));
  heads.addEventListener("change", () => { look(Number(heads.value)); $("head").focus(); });
  const held = heldBy(step);
  const most = Math.max(...weights, 1);
  const order = held.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, 60).sort((a, b) => a - b);
  const chips = el("div", { class: "chips" }, order.map((i) =>
    el("span", { class: "chip", title: `token ${held[i]}`, style: `background: color-mix(in srgb, var(--soft) ${Math.round((100 * weights[i]) / most)}%, transparent)` },
      el("span", {}, shown(everything[held[i]])), el("small", { style: "color: inherit" }, `${(weights[i] / 10).toFixed(1)}%`))));
  const one = el("h3", {}, el("label", { for: `head${suffix}` }, "Attention of the newest token: "), heads);
  if (!columns(step)) return fill("attention", one, chips);
  fill("attention", el("h3", {}, "Attention of the newest token, in every head"), grid,
    el("p", { class: "legend muted" }, "A row is a layer, a column a head. In each, the context runs from left to right; the taller a bar, the more attention (its square root). Click one to see its tokens."),
    one, chips);
  return drawHeads();
}

/** The places in the context of the tokens in the cache, in the order of a head's weights. */
const heldBy = (step) => step.cache.held.flatMap(([a, b]) => Array.from({ length: b - a }, (_, i) => a + i));

/** The number of heads in a layer, if every head of every layer was recorded; otherwise 0. */
function columns(step) {
  const n = step.attention.length / trace.n_layer;
  return step.attention.length > 1 && step.attention.every(([layer, head], i) => layer * n + head === i) ? n : 0;
}

function look(i) {
  lookedAt = i;
  renderAttention(steps[at]);
}

function geometry() {
  const n = columns(steps[at]);
  const width = grid.parentElement.clientWidth;
  const pitch = (width - CELL.label) / n;
  const height = Math.max(CELL.least, Math.min(CELL.most, 0.62 * pitch));
  return { n, width, pitch, height: height + CELL.gap, whole: CELL.label + trace.n_layer * (height + CELL.gap) };
}

function drawHeads() {
  const step = steps[at];
  if (!step || !grid.isConnected || !columns(step)) return;
  const { n, width, pitch, height, whole } = geometry();
  const scale = devicePixelRatio || 1;
  grid.width = Math.round(width * scale);
  grid.height = Math.round(whole * scale);
  grid.style.height = `${whole}px`;
  const paint = grid.getContext("2d");
  paint.scale(scale, scale);
  const colours = Object.fromEntries(["bg", "bar", "pick", "muted"].map((name) => [name, colour(name)]));
  paint.font = "10px system-ui, sans-serif";
  paint.fillStyle = colours.muted;
  paint.textAlign = "center";
  const every = Math.ceil(16 / pitch);
  for (let head = 0; head < n; head += every) paint.fillText(head, CELL.label + (head + 0.5) * pitch, 11);
  paint.textAlign = "right";
  paint.textBaseline = "middle";
  for (let layer = 0; layer < trace.n_layer; layer++) paint.fillText(layer, CELL.label - 5, CELL.label + (layer + 0.5) * height - CELL.gap / 2);
  const inside = pitch - CELL.gap;
  const tall = height - CELL.gap;
  step.attention.forEach(([layer, head, weights], i) => {
    const [x, y] = [CELL.label + head * pitch, CELL.label + layer * height];
    paint.fillStyle = colours.bg;
    paint.fillRect(x, y, inside, tall);
    paint.fillStyle = i === lookedAt ? colours.pick : colours.bar;
    const bars = Math.min(weights.length, Math.max(1, Math.floor(inside)));
    for (let bar = 0; bar < bars; bar++) { // of several tokens in one bar, the one with the most attention
      let weight = 0;
      for (let k = Math.floor((bar * weights.length) / bars), end = ((bar + 1) * weights.length) / bars; k < end; k++) weight = Math.max(weight, weights[k]);
      const tip = tall * Math.sqrt(weight / 1000);
      if (weight) paint.fillRect(x + (bar * inside) / bars, y + tall - tip, inside / bars, tip);
    }
    if (i === lookedAt || i === hovered) {
      paint.strokeStyle = i === lookedAt ? colours.pick : colours.bar;
      paint.lineWidth = 1.5;
      paint.strokeRect(x - 0.75, y - 0.75, inside + 1.5, tall + 1.5);
    }
  });
  grid.setAttribute("aria-label", `${trace.n_layer} layers of ${n} heads; choose one in the list below to hear its tokens`);
}

/** A colour of the page as it is now, light or dark. */
function colour(name) {
  grid.style.color = `var(--${name})`;
  return getComputedStyle(grid).color;
}

/** The head under the pointer, or null. */
function under(event) {
  const box = grid.getBoundingClientRect();
  const { n, pitch, height } = geometry();
  const head = Math.floor((event.clientX - box.x - CELL.label) / pitch);
  const layer = Math.floor((event.clientY - box.y - CELL.label) / height);
  return head >= 0 && head < n && layer >= 0 && layer < trace.n_layer ? layer * n + head : null;
}

grid.addEventListener("click", (event) => { const i = under(event); if (i != null) look(i); });
grid.addEventListener("mousemove", (event) => hover(under(event)));
grid.addEventListener("mouseleave", () => hover(null));
new ResizeObserver(() => requestAnimationFrame(drawHeads)).observe($("attention"));

function hover(i) {
  if (i === hovered) return;
  hovered = i;
  grid.style.cursor = i == null ? "" : "pointer";
  if (i != null) {
    const [layer, head, weights] = steps[at].attention[i];
    const most = weights.indexOf(Math.max(...weights));
    const held = heldBy(steps[at]);
    grid.title = `layer ${layer}, head ${head}: most on ${spoken(everything[held[most]])}, ${(weights[most] / 10).toFixed(1)}%`;
  }
  drawHeads();
}
