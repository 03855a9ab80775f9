"use strict";
// The sampling rules, from a step's stored logits: what mlxgen.sampling.samplers computes, for the page's "what if".
const sampling = (() => {
  /**
   * What the rules from the temperature on make of a step's logits: the stored ones each, the rest as a few groups of
   * tokens. Returns each candidate's probability and what cut it, and the trail of rules with what each one kept. What
   * the run's bans removed stays removed.
   */
  function applyRules(step, { temperature, topK, topP, minP, typicalP, epsilonCutoff, etaCutoff }) {
    const { logits } = step;
    const cutBy = logits.map((_, i) => step.banned?.[i] ?? null);
    let kept = logits.map((_, i) => i).filter((i) => !cutBy[i]); // candidates, the best first
    const first = kept[0];
    const best = logits[first];
    const trail = [];
    const divisor = temperature || 1;
    const weight = logits.map((logit, i) => (cutBy[i] ? 0 : Math.exp((logit - best) / divisor)));
    const groups = slices(step.rest.groups, best, divisor);
    const mass = () => sum(kept.map((i) => weight[i])) + restMass(groups);
    const count = () => kept.length + sum(groups.map((group) => group.kept));
    const total = mass();
    const tempered = weight.map((w) => w / total);
    if (temperature === 0) {
      for (const i of kept.slice(1)) cutBy[i] = "greedy";
      trail.push({ name: "greedy", value: 1, kept: 1, share: 1 / total });
      return { tempered, final: logits.map((_, i) => (i === first ? 1 : 0)), restFinal: 0, cutBy, trail };
    }
    trail.push({ name: "temperature", value: temperature, kept: count(), share: 1 });

    /** Keep some of the candidates, and others[g] tokens of each group g. */
    const cut = (name, value, candidates, others) => {
      const before = mass();
      const stays = new Set(candidates);
      for (const i of kept) if (!stays.has(i)) cutBy[i] = name;
      kept = candidates;
      groups.forEach((group, g) => (group.kept = others[g]));
      trail.push({ name, value, kept: count(), share: mass() / before });
    };
    const ofGroups = (keep) => groups.map((group) => (keep(group) ? group.kept : 0));

    if (topK != null) {
      let left = Math.max(0, topK - kept.length);
      cut("top_k", topK, kept.slice(0, topK), groups.map((group) => {
        const taken = Math.min(group.kept, left);
        left -= taken;
        return taken;
      }));
    }
    if (topP != null) {
      let ahead = 0;
      const enough = topP === 1 ? Infinity : topP * mass();
      const leading = kept.filter((i) => {
        const stays = ahead < enough;
        ahead += weight[i];
        return stays;
      });
      cut("top_p", topP, leading, groups.map((group) => {
        const stays = ahead >= enough ? 0 : upTo(enough - ahead, group);
        ahead += stays * group.each;
        return stays;
      }));
    }
    if (minP) {
      const least = temperature * Math.log(minP);
      cut("min_p", minP, kept.filter((i) => logits[i] - best >= least), ofGroups((group) => group.mean - best >= least));
    }
    if (typicalP != null && typicalP < 1) {
      const all = mass();
      const expected = entropy(kept.map((i) => weight[i]), groups, all);
      const one = (w) => Math.abs(-Math.log(w / all) - expected);
      const places = [
        ...kept.map((i) => ({ i, far: one(weight[i]), mass: weight[i] })),
        ...groups.map((group, g) => ({ g, far: one(group.each), mass: group.kept * group.each })),
      ].sort((a, b) => a.far - b.far);
      let ahead = 0;
      const others = groups.map(() => 0);
      const closest = [];
      for (const place of places) {
        if (ahead >= typicalP * all) break;
        if (place.g == null) closest.push(place.i);
        else others[place.g] = upTo(typicalP * all - ahead, groups[place.g]);
        ahead += place.mass;
      }
      cut("typical_p", typicalP, closest.sort((a, b) => a - b), others);
    }
    const atLeast = (name, value, p) => {
      const least = p * mass();
      const top = kept[0];
      cut(name, value, kept.filter((i) => weight[i] >= least || logits[i] === logits[top]), ofGroups((group) => group.each >= least));
    };
    if (epsilonCutoff) atLeast("epsilon_cutoff", epsilonCutoff, epsilonCutoff);
    if (etaCutoff) {
      const spread = entropy(kept.map((i) => weight[i]), groups, mass());
      atLeast("eta_cutoff", etaCutoff, Math.min(etaCutoff, Math.sqrt(etaCutoff) * Math.exp(-spread)));
    }
    const all = mass();
    const final = weight.map((w, i) => (cutBy[i] ? 0 : w / all));
    return { tempered, final, restFinal: restMass(groups) / all, cutBy, trail };
  }

  const sum = (list) => list.reduce((a, b) => a + b, 0);

  const SLICES = 8; // of each group of the rest

  /**
   * The groups of the rest in slices, the highest first: logits spread evenly, as widely as the group's variance says.
   * Each group's mass follows from its size, mean and variance (to the second order).
   */
  function slices(groups, best, temperature) {
    return groups.flatMap(([size, mean, variance]) => {
      const n = Math.min(SLICES, size);
      const parts = Array.from({ length: n }, (_, k) => ({
        mean: mean + Math.sqrt(12 * variance) * (0.5 - (k + 0.5) / n),
        size: Math.floor((size * (k + 1)) / n) - Math.floor((size * k) / n),
      }));
      const weights = parts.map((part) => Math.exp((part.mean - best) / temperature));
      const all = sum(parts.map((part, k) => part.size * weights[k])) || 1;
      const mass = size * Math.exp((mean - best) / temperature) * (1 + variance / (2 * temperature ** 2));
      return parts.map((part, k) => ({ mean: part.mean, each: (mass * weights[k]) / all, kept: part.size }));
    });
  }

  const restMass = (groups) => sum(groups.map((group) => group.kept * group.each));

  /** How many tokens of a group it takes to reach a mass, all of them at most. */
  const upTo = (mass, { each, kept }) => Math.min(kept, each ? Math.ceil(mass / each) : kept);

  /** The entropy, in nats, of candidates and groups with these weights, which add up to `total`. */
  function entropy(weights, groups, total) {
    const part = (w) => (w > 0 ? (-w / total) * Math.log(w / total) : 0);
    return sum(weights.map(part)) + sum(groups.map((group) => group.kept * part(group.each)));
  }

  /** The token whose part of the line from 0 to 1 holds the step's random number; null where that cannot be told. */
  function drawn(step, result, temperature) {
    if (temperature === 0) return step.ids[result.final.indexOf(1)];
    if (step.random == null || result.restFinal > 0) return null;
    let end = 0;
    const line = step.ids.map((id, i) => [id, result.final[i]]).filter(([, p]) => p > 0).sort((a, b) => a[0] - b[0]);
    for (const [id, p] of line) if ((end += p) > step.random) return id;
    return line.at(-1)[0];
  }

  return { applyRules, drawn, sum };
})();
