"use strict";
// The sampling rules, from a step's stored logits: what mlxgen.sampling.samplers computes, for the page's "what if".
const sampling = (() => {
  /**
   * What temperature, top-k, top-p and min-p make of a step's logits: the stored ones each, the rest as one mass.
   * Returns each candidate's probability and what cut it, and the trail of rules with what each one kept.
   */
  function applyRules(step, { temperature, topK, topP, minP }) {
    const { logits } = step;
    const n = logits.length;
    const best = logits[0];
    const others = step.rest.groups.reduce((sum, [size]) => sum + size, 0);
    const cutBy = new Array(n).fill(null);
    const trail = [];
    if (temperature === 0) {
      cutBy.fill("greedy", 1);
      const weight = logits.map((logit) => Math.exp(logit - best));
      const mass = groupMasses(step.rest.groups, best, 1).reduce((sum, w) => sum + w, sum(weight));
      trail.push({ name: "greedy", value: 1, kept: 1, share: 1 / mass });
      return { tempered: weight.map((w) => w / mass), final: logits.map((_, i) => (i ? 0 : 1)), restFinal: 0, cutBy, trail };
    }
    const weight = logits.map((logit) => Math.exp((logit - best) / temperature));
    const groups = step.rest.groups.map(([size], i) => ({ size, mean: step.rest.groups[i][1], weight: 0 }));
    groupMasses(step.rest.groups, best, temperature).forEach((mass, i) => (groups[i].weight = mass));
    const total = sum(weight) + sum(groups.map((group) => group.weight));
    const tempered = weight.map((w) => w / total);
    let kept = { tokens: n, others, mass: total };
    trail.push({ name: "temperature", value: temperature, kept: n + others, share: 1 });

    const cut = (name, value, keepTokens, keepOthers) => {
      const before = kept.mass;
      for (let i = keepTokens; i < kept.tokens; i++) cutBy[i] = name;
      kept = { tokens: keepTokens, others: keepOthers, mass: sum(weight.slice(0, keepTokens)) + leading(groups, keepOthers) };
      trail.push({ name, value, kept: keepTokens + keepOthers, share: kept.mass / before });
    };

    if (topK != null) cut("top_k", topK, Math.min(topK, kept.tokens), Math.min(kept.others, Math.max(0, topK - n)));
    if (topP != null) {
      let [ahead, keepTokens, keepOthers] = [0, 0, 0];
      const enough = topP === 1 ? Infinity : topP * kept.mass;
      while (keepTokens < kept.tokens && ahead < enough) ahead += weight[keepTokens++];
      for (let g = 0; g < groups.length && ahead < enough && keepOthers < kept.others; g++) {
        const each = groups[g].weight / groups[g].size;
        const wanted = Math.min(groups[g].size, kept.others - keepOthers, each ? Math.ceil((enough - ahead) / each) : groups[g].size);
        keepOthers += wanted;
        ahead += wanted * each;
      }
      cut("top_p", topP, keepTokens, keepOthers);
    }
    if (minP) {
      const least = temperature * Math.log(minP);
      const keepTokens = logits.slice(0, kept.tokens).filter((logit) => logit - best >= least).length;
      const keepOthers = sum(groups.map((group) => (group.mean - best >= least ? group.size : 0)));
      cut("min_p", minP, keepTokens, Math.min(kept.others, keepOthers));
    }
    const final = weight.map((w, i) => (i < kept.tokens ? w / kept.mass : 0));
    return { tempered, final, restFinal: leading(groups, kept.others) / kept.mass, cutBy, trail };
  }

  const sum = (list) => list.reduce((a, b) => a + b, 0);

  /** The mass of each band of the rest, from its size, mean and variance (to the second order). */
  const groupMasses = (groups, best, temperature) =>
    groups.map(([size, mean, variance]) => size * Math.exp((mean - best) / temperature) * (1 + variance / (2 * temperature ** 2)));

  /** The mass of the first `size` tokens of the rest. */
  function leading(groups, size) {
    let mass = 0;
    for (const group of groups) {
      const taken = Math.min(group.size, size);
      mass += (group.weight * taken) / group.size;
      size -= taken;
    }
    return mass;
  }

  /** The token whose part of the line from 0 to 1 holds the step's random number; null where that cannot be told. */
  function drawn(step, result, temperature) {
    if (temperature === 0) return step.ids[0];
    if (step.random == null || result.restFinal > 0) return null;
    let end = 0;
    const line = step.ids.map((id, i) => [id, result.final[i]]).filter(([, p]) => p > 0).sort((a, b) => a[0] - b[0]);
    for (const [id, p] of line) if ((end += p) > step.random) return id;
    return line.at(-1)[0];
  }

  return { applyRules, drawn, sum };
})();
