"""A trace on the terminal: the five stages of each step, in 80 columns, readable without colour."""

from __future__ import annotations

import math
from collections import Counter

import click
from rich.bar import Bar
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlxgen.cli.output import count, escaped, size, visible
from mlxgen.cli.terminal_console import TerminalConsole
from mlxgen.tracing.record import BANS, RuleEffect, Span, Trace, TracedStep

SHOWN_CONTEXT = 24  # newest tokens of the context that a step shows
SHOWN_PINNED = 4  # pinned tokens shown before them
SHOWN_HEADS = 8  # attention heads that get a line each
BAR_WIDTH = 22
NARROW = 60  # columns below which a stage's text stands below its name
COLUMNS = {"logit": 60, "model": 38, "temp": 60, "rules": 0, "bar": 78}  # of the candidates: from which width on
CUTS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
SHORT = {  # rules in the column of the candidates; others have their own name
    "no_repeat_ngram": "ngram",
    "bad_words": "word",
    "min_tokens": "end",
    "suppress_tokens": "token",
    "typical_p": "typ-p",
    "epsilon_cutoff": "eps",
    "eta_cutoff": "eta",
}
PINNED, DROPPED = "*", "×"  # after a token's id


def print_trace(trace: Trace, *, candidates: int, pause: bool) -> None:
    """Print every step with its first `candidates`. pause: wait for a key after each step; q quits."""
    console = TerminalConsole()
    for step in trace.steps:
        _print_step(console, trace, step, candidates)
        if pause and step.finish_reason is None:
            click.echo("Press any key for the next step, q to quit ", nl=False, err=True)
            key = click.getchar()
            click.echo(err=True)
            if key in ("q", "Q"):
                return
    print_end(console, trace)


def _print_step(console: Console, trace: Trace, step: TracedStep, candidates: int) -> None:
    console.rule(f"Step {step.index + 1} of {len(trace.steps)}", align="left", characters="─")
    _print_stage(console, "1 Context", _context(trace, step))
    _print_stage(console, "2 Transformer", _network(trace, step))
    _print_stage(console, "3 Logits", Text(_logits(trace, step)))
    _print_stage(console, "4 Sample", Text(_rules(step, trace.vocab_size)))
    console.print(Padding(_candidates(step, candidates, console.width), (0, 0, 0, 2)))
    _print_stage(console, "5 Append", _append(trace, step))
    console.print()


def _print_stage(console: Console, name: str, text: Text) -> None:
    """Print a stage's name and, beside it or, on a narrow terminal, below it, its text."""
    if console.width < NARROW:
        console.print(Text(name, style="bold"))
        console.print(Padding(text, (0, 0, 0, 2)))
        return
    row = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    row.add_column(no_wrap=True, style="bold", width=13)
    row.add_column(overflow="fold")
    row.add_row(name, text)
    console.print(row)


def _context(trace: Trace, step: TracedStep) -> Text:
    prompt = len(trace.prompt_tokens)
    tokens = [*trace.prompt_tokens, *trace.tokens][: step.context_length]
    made = step.context_length - prompt
    line = Text(
        f"{count(step.context_length, 'token')}: {prompt:,} prompt, {made:,} generated; {_time(step.seconds.context)}\n"
    )
    first = max(0, len(tokens) - SHOWN_CONTEXT)
    pinned = min(step.cache.pinned, SHOWN_PINNED, first)
    dropped = {at for a, b in step.cache.dropped for at in range(a, b)}
    for at in [*range(pinned), *range(first, len(tokens))]:
        if at == first and first > pinned:
            line.append("… ", style="dim")
        if at == prompt:
            line.append("| ", style="dim")
        mark = DROPPED if at in dropped else PINNED if at < step.cache.pinned else ""
        line.append(visible(tokens[at].text), style="dim" if at in dropped else "" if at < prompt else "bold")
        line.append(f"/{tokens[at].id}{mark} ", style="dim")
    line.rstrip()
    legend = [f"{PINNED} pinned"] * bool(step.cache.pinned) + [f"{DROPPED} dropped from the cache"] * bool(dropped)
    return line.append(f"\n{', '.join(legend)}" if legend else "", style="dim")


def _network(trace: Trace, step: TracedStep) -> Text:
    cache = step.cache
    text = Text(f"{count(step.processed, 'token')} through {cache.layers} layers, {_time(step.seconds.transformer)}")
    text.append(
        f"\ncache {cache.before:,} → {cache.after:,} positions, {size(cache.layer_bytes)} per layer,"
        f" {size(cache.total_bytes)} in total"
    )
    if cache.slid:
        text.append(f"\nthe table of {trace.n_positions:,} positions was full, so the context slid")
    if cache.dropped:
        pinned = f", first {cache.pinned} pinned" if cache.pinned else ""
        text.append(f"\nholds tokens {_spans(cache.held)}{pinned}; dropped {_spans(cache.dropped)}")
    for entry in step.lens:
        text.append(f"\nlens, layer {entry.layer}: {visible(entry.text)} {percent(entry.probability)}")
    text.append("".join(f"\n{line}" for line in _attention(trace, step)))
    return text


def _attention(trace: Trace, step: TracedStep) -> list[str]:
    """What each head attends to; where many were recorded, a line per layer with what most of its heads attend to."""
    held = [at for a, b in step.cache.held for at in range(a, b)]
    tokens = [*trace.prompt_tokens, *trace.tokens]
    if len(step.attention) <= SHOWN_HEADS:
        lines = []
        for head in step.attention:
            best = sorted(zip(head.weights, held, strict=True), key=lambda pair: -pair[0])[:5]
            seen = ", ".join(f"{visible(tokens[at].text)} {percent(weight)}" for weight, at in best)
            lines.append(f"head {head.layer}.{head.head} attends to {seen}")
        return lines
    favourites: dict[int, Counter[int]] = {}  # of each layer: which token its heads attend to most, and how many do
    for head in step.attention:
        favourite = held[max(range(len(held)), key=head.weights.__getitem__)]
        favourites.setdefault(head.layer, Counter())[favourite] += 1
    return [
        f"layer {layer}: most attention to "
        + ", ".join(f"{visible(tokens[at].text)} ({count(heads, 'head')})" for at, heads in found.most_common(4))
        for layer, found in favourites.items()
    ]


def _logits(trace: Trace, step: TracedStep) -> str:
    return (
        f"{trace.vocab_size:,} logits, {_time(step.seconds.logits)}; entropy {step.entropy:.2f} bits"
        f" (perplexity {2**step.entropy:,.1f})"
    )


def _rules(step: TracedStep, vocab_size: int) -> str:
    before = [vocab_size, *(rule.kept for rule in step.rules)]
    effects = [_effect(rule, there) for rule, there in zip(step.rules, before, strict=False)]
    cuts = [rule for rule in step.rules if rule.name in CUTS]
    if cuts:
        left = math.prod(rule.kept_probability for rule in cuts)
        kept = (
            "1 left is divided by itself" if cuts[-1].kept == 1 else f"{cuts[-1].kept:,} left are divided by their sum"
        )
        effects.append(f"renormalised: the {kept}, {left:.4f}")
    drawn = "" if step.random is None else f"drawn with random number {step.random:.4f}, "
    return "\n".join([*effects, drawn + _time(step.seconds.sample)])


def _effect(rule: RuleEffect, before: int) -> str:
    """The effect of a rule on a number of tokens, in words."""
    if rule.name == "temperature":
        return f"temperature {rule.value:g} divides the logits"
    if rule.name == "greedy":
        return "greedy takes the highest logit"
    if rule.name == "adjust":
        return f"penalties and bias leave {count(rule.kept, 'token')}"
    name = rule.name.replace("_", "-")
    if rule.name in BANS:
        value = "" if rule.value is None else f" {rule.value:g}"
        gone = count(before - rule.kept, "token")
        return f"{name}{value} bans {gone}, {percent(max(0.0, 1 - rule.kept_probability))}"
    share = (
        f"cumulative sum {rule.kept_probability:.4f}" if rule.name == "top_p" else f"{percent(rule.kept_probability)}"
    )
    return f"{name} {rule.value:g} keeps {count(rule.kept, 'token')}, {share}"


def _candidates(step: TracedStep, most: int, width: int) -> Table:
    """The candidates, with as many columns as fit into the terminal's width."""
    columns = [name for name, least in COLUMNS.items() if width >= least]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", width=1)
    table.add_column("token", width=16, no_wrap=True, overflow="ellipsis")
    tempered = any(rule.name == "temperature" for rule in step.rules)
    for name in columns:
        if name == "bar":
            table.add_column("", width=BAR_WIDTH)
        else:
            title = "" if name == "temp" and not tempered else name
            table.add_column(title, justify="right", width=10 if name == "rules" else 7)
    shown = step.candidates[:most]
    shown += [one for one in step.candidates[most:] if one.token == step.chosen.token]
    highest = max(one.rule_probability for one in step.candidates) or 1.0
    for one in shown:
        chosen = one.token == step.chosen.token
        cells: dict[str, str | Bar] = {
            "logit": f"{one.logit:.2f}",
            "model": percent(one.probability),
            "temp": percent(one.tempered) if tempered else "",
            "rules": f"cut {_short(one.cut_by)}" if one.cut_by else percent(one.rule_probability),
            "bar": Bar(highest, 0, one.rule_probability, width=BAR_WIDTH, color="yellow" if chosen else "blue"),
        }
        table.add_row(
            ">" if chosen else "",
            Text(visible(one.text)),
            *(cells[name] for name in columns),
            style="bold" if chosen else "dim" if one.cut_by else "",
        )
    model, temp, rules = (
        percent(round(max(0.0, 1 - sum(getattr(one, name) for one in shown)), 6))
        for name in ("probability", "tempered", "rule_probability")
    )
    others = {"model": model, "temp": temp if tempered else "", "rules": rules}
    table.add_row("", Text("all others"), *(others.get(name, "") for name in columns), style="dim")
    return table


def _short(rule: str) -> str:
    return SHORT.get(rule, rule.replace("_", "-"))


def _append(trace: Trace, step: TracedStep) -> Text:
    chosen = step.chosen
    text = Text(visible(chosen.text), style="bold")
    details = (
        f"  rank {chosen.rank:,}, model {percent(chosen.probability)}, rules {percent(chosen.rule_probability)},"
        f" {_time(step.seconds.append)}"
        f"\ntext so far {power(step.total_logprob)}"
    )
    if trace.greedy:
        done = trace.greedy.logprobs[: step.index + 1]
        details += f"; greedy path {power(sum(done))}"
    text.append(details, style="not bold")
    return text


def print_end(console: Console, trace: Trace, title: str = "Text") -> None:
    """Print the whole text, how it ended, and its probability."""
    console.rule(title, align="left", characters="─")
    prompt = "".join(token.text for token in trace.prompt_tokens) if not isinstance(trace.prompt, str) else trace.prompt
    console.print(Text(escaped(prompt)).append(escaped(trace.text), style="bold"))
    console.print(f"({trace.finish_reason}; seed {trace.seed}; {power(_total(trace))})", style="dim")


def _total(trace: Trace) -> float:
    return trace.steps[-1].total_logprob if trace.steps else 0.0


def percent(p: float) -> str:
    return "<0.01%" if 0 < p < 0.00005 else f"{100 * p:.2f}%"


def power(logprob: float) -> str:
    exponent = math.floor(logprob / math.log(10))
    number = (
        f"{math.exp(logprob):.3g}"
        if exponent >= -3
        else f"{math.exp(logprob - exponent * math.log(10)):.2f}e{exponent}"
    )
    return f"{number} (ln {logprob:.2f})"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _spans(spans: list[Span]) -> str:
    return ", ".join(f"{a}" if b - a == 1 else f"{a}–{b - 1}" for a, b in spans)
