"""Format a plan as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agentgrpo.preflight.plan.device import ALWAYS, BOUND, ESTIMATE, EXACT, GIB, LARGE_SHARE, ROLLOUT, UPDATE, table
from agentgrpo.preflight.plan.estimate import Plan
from agentgrpo.preflight.plan.knobs import Knob
from agentgrpo.preflight.plan.limits import overruns
from agentgrpo.training.adapters import has_adapter
from agentgrpo.training.learning_rate import too_low, usual_rate


def _environment(plan: Plan) -> str:
    """The environment's preset name, as far as the configuration shows it."""
    is_single = plan.config["environment"].get("max_turns") == 1 and not plan.config.get("tools")
    return "single_turn" if is_single else str(plan.config["environment"]["name"])


def lines(plan: Plan, advice: Sequence[Knob]) -> list[str]:
    weights = plan.memory.weights
    return [
        "plan: nothing was loaded, downloaded or written",
        f"model ({plan.source}): {weights.total:,} parameters, {_trained(plan)}",
        "",
        f"memory of one device, {_processes(plan.memory.processes)}, {plan.hardware.strategy}:",
        *_memory(plan),
        *_advice(plan, advice, "memory"),
        "",
        f"a step ({plan.config['task']['name']}, {_environment(plan)}):",
        *_work(plan),
        *_time(plan),
        *_advice(plan, advice, "time"),
        *_rate(plan),
        *_calls(plan),
        *_advice(plan, advice, "calls", "money"),
        *_whole(plan),
        *_disk(plan),
        *_advice(plan, advice, "disk"),
    ]


def _trained(plan: Plan) -> str:
    return f"{plan.memory.weights.trained:,} of them trained; {plan.hardware.dtype}"


def _whole(plan: Plan) -> Iterator[str]:
    episodes, first = plan.episodes, (plan.config["model"].get("cold_start") or {}).get("demonstrations")
    if first:
        yield f"before step 0: a cold start from {first:,} demonstrations (model.cold_start), once; a cache keeps it"
    yield f"{plan.run.max_steps:,} steps: {episodes.trained:,} episodes, and {episodes.evaluated:,} of evaluations"
    if plan.run.eval.baselines:
        yield "after the last step: two other runs of as many CPU seconds (run.eval.baselines)"


def _memory(plan: Plan) -> Iterator[str]:
    made = plan.memory
    found = sorted(made.lines(), key=lambda line: -line.num_bytes)
    rows = [(line.name, gib(line.num_bytes), line.when, line.basis, line.note) for line in found]
    phase = max((ROLLOUT, UPDATE), key=made.peak)
    largest = max((line for line in found if line.when in (ALWAYS, phase)), key=lambda line: line.num_bytes)
    yield from table([("", "GiB", "when", "basis", ""), *rows])
    yield f"  most at once: {gib(made.need)} GiB, in the {phase}; {largest.name} {largest.num_bytes / made.need:.0%}"
    if plan.memory_bytes is None:
        yield f"  memory of the device: {plan.whose}"
    else:
        fits = "fits" if plan.fits else "DOES NOT FIT"
        yield f"  {fits}: {gib(plan.memory_bytes)} GiB ({plan.whose}), of which {LARGE_SHARE:.0%} are counted on"
    yield "  GiB by number of processes: " + ", ".join(f"{n}: {gib(need)}" for n, need in plan.by_processes.items())
    if plan.engine.servers:
        context = plan.engine.max_context * made.kv_token_bytes
        yield (
            f"  and each of {plan.engine.servers} servers, on a device of its own: {gib(made.weight_bytes)} GiB of "
            f"weights, {gib(context)} GiB of keys and values for a context of {plan.engine.max_context:,} tokens"
        )


def _advice(plan: Plan, advice: Sequence[Knob], *kinds: str) -> Iterator[str]:
    for short in overruns(plan):
        if short.kind not in kinds:
            continue
        write, fits = _amount(short.kind), "which fits"
        if short.kind == "time":
            fits = f"at most {write(short.limit)}"
            yield f"  long: {write(short.takes)} {short.said}. Each planned with:"
        else:
            yield f"  too much: {write(short.takes)} of {write(short.limit)} ({short.said}). Each planned with:"
        found = [knob for knob in advice if knob.of == short.kind]
        rows = [(k.text, f"-{write(k.saves)}", f"leaves {write(k.takes)}", fits if k.fits else "") for k in found]
        yield from (f"  {line}" for line in (table(rows) if rows else ["  no setting that is known here helps"]))


def _amount(kind: str) -> Callable[[float], str]:
    if kind == "time":
        return duration
    return (lambda value: f"{gib(value)} GiB") if kind in ("memory", "disk") else (lambda value: f"{value:,.2f}")


def _work(plan: Plan) -> Iterator[str]:
    step, rollout = plan.step, plan.rollout
    flops = step.flops(
        plan.memory.weights,
        recomputed=plan.memory.recomputes,
        reference=plan.algorithm.needs_reference,
    )
    most = max(flops, key=lambda name: flops[name])
    shares = ", ".join(f"{name} {value:.3g}" for name, value in flops.items() if value)
    counted = f"{rollout.tasks_per_step} tasks x {rollout.group_size} attempts"
    counted += f" x {step.rounds} rounds ({BOUND}: 1 + rollout.refill_rounds)" if step.rounds > 1 else f" ({EXACT})"
    yield f"  episodes: {plan.episodes.of_step:,} = {counted}"
    yield f"  turns of an episode: {step.turns:.3g} ({step.turns_basis})"
    yield f"  sampled tokens: {step.rounds * step.sampled_tokens:,} ({BOUND}, {step.max_tokens:,} a turn)"
    yield f"  tokens of contexts: {step.rounds * step.context_tokens:,} ({BOUND}, {step.max_context:,} a context)"
    yield (f"  products with the weights, FLOP: {shares} ({BOUND}); {most} {flops[most] / sum(flops.values()):.0%}")


def _time(plan: Plan) -> Iterator[str]:
    if plan.rate is None:
        yield "  time: unknown; give hardware.peak_tflops and hardware.bandwidth_gib_s of the device"
        return
    parts = plan.seconds
    total = sum(parts.values())
    shares = ", ".join(f"{name} {duration(value)}" for name, value in parts.items() if value)
    yield f"  time: {duration(total)} for so many tokens: {shares} ({ESTIMATE}, from {plan.rate.basis})"
    yield (
        f"  {plan.run.max_steps:,} steps: {duration(plan.run_seconds)} ({ESTIMATE}, if every turn and every context is "
        "as long as is allowed, which is rare; evaluations, and what is waited for of tools, judges and searches, come "
        "on top)"
    )


def _rate(plan: Plan) -> Iterator[str]:
    node, weights, is_adapter = plan.config["optimizer"], plan.memory.weights.total, has_adapter(plan.model)
    low = too_low(node, weights, plan.run.max_steps, is_adapter=is_adapter)
    if node.get("name") == "adamw" and node["lr"] is None:
        yield f"  learning rate: {usual_rate(weights, is_adapter=is_adapter):g} (optimizer.lr=null: the usual one)"
    elif low and plan.config["demonstrations"]["name"] == "none":
        yield f"  learning rate: {low}"


def _calls(plan: Plan) -> Iterator[str]:
    for cost in plan.costs:
        c = cost.calls
        price = (
            f"; {cost.money(cost.of_run):,.2f} a run at {cost.price[0]:.3g} each ({cost.price[1]})"
            if cost.price
            else ""
        )
        yield (
            f"  calls, {c.kind} ({c.where}): {cost.of_step:,.0f} a step, {cost.of_run:,.0f} a run with its evaluations "
            f"({c.basis}, {c.note}){price}"
        )
    if len([c for c in plan.costs if c.price]) > 1:
        yield f"  money: {plan.money[0]:,.2f} a step, {plan.money[1]:,.2f} a run ({BOUND})"


def _disk(plan: Plan) -> Iterator[str]:
    run, made = plan.run, plan.memory
    if run.checkpoint_every:
        kept = run.keep_last + run.keep_best
        yield (
            f"a checkpoint: {gib(made.checkpoint_bytes)} GiB of tensors ({EXACT}); {kept} are kept and one is being "
            f"written: {gib((kept + 1) * made.checkpoint_bytes)} GiB in the run directory"
        )
    else:
        yield "no checkpoints (run.checkpoint_every=0)"
    if plan.engine.servers:
        yield f"weights that servers read: {gib(plan.sync_bytes)} GiB a version, of which up to 3 lie on the disk"
    if plan.free_bytes is not None:
        yield f"disk: {gib(plan.disk_bytes)} GiB at most, and {gib(plan.free_bytes)} GiB are free here"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.2f}" if num_bytes >= GIB / 10 else f"{num_bytes / GIB:.4f}"


def duration(value: float) -> str:
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:,.3g} {name}"
    return f"{value:.3g} s"
