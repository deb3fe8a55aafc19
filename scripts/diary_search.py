"""How well searching the days of a diary answers, compared with a perfect memory of them: no model, no training.

python scripts/diary_search.py                 the plain world and the hard one, world seed 0
python scripts/diary_search.py --worlds hard --seeds 0 5 7

The oracle's memory applies the calls that each day asks for. Every baseline of environment=memory may read as much text
as that memory holds, in tasks of the same kind; tokens are words here. The row told is rag_sentences on days whose
sentences have each been rewritten into the wording of the questions. The row told_pairs also rewrites facts that two
sentences state together: an upper bound for a reader who knows every wording.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from agentgrpo.core.types import Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.memory.baselines import memory_baselines
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.search import bm25
from agentgrpo.environments.memory.store import Memory
from agentgrpo.tasks.dialogue import CHUNKS, chunks_of, questions_of, split
from agentgrpo.worlds.diary.dataset import Diaries
from agentgrpo.worlds.diary.demonstrator import ideal
from agentgrpo.worlds.diary.world import Diary, DiaryRelation, hard_wording, relations

KINDS = ("current", "history", "count", "forgotten", "rumoured", "never")
SEARCHED = "rag_sentences"
Right = dict[str, list[bool]]
"""Kind of task or of question ("" = all) -> whether each question was answered correctly."""


def words(text: str) -> int:
    return len(text.split())


def remembered(diary: Diary) -> Memory:
    """The memory that the oracle keeps."""
    memory = Memory(SCHEMAS["keyed"], words)
    for number, day in enumerate(diary.days):
        for call in (call for sentence in day for call in ideal(sentence, True, None)):  # type: ignore[arg-type]
            memory.apply(call, chunk=number)
    return memory


def forms(relation: DiaryRelation) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield each wording of a sentence, with its equivalent in plain words."""
    told, key = hard_wording().relations[relation.verb], rf"\g<who> {relation.verb}"
    plain = {
        told.fact: rf"{key} {relation.cue} \g<value>.",
        told.change: rf"After \g<before>, {key} {relation.cue} \g<value>.",
        told.forget: f"Please forget {relation.asked} {key}.",
    }
    for texts, said in plain.items():
        yield from ((_pattern(text), said) for text in texts)


def _pattern(text: str) -> re.Pattern[str]:
    filled = {name: rf"(?P<{name}>[A-Za-z]+)" for name in ("who", "value", "before", "whom")}
    return re.compile(f"{text}.".replace(".", r"\.").format(**filled))


def in_plain_words(chunk: str, pairs: bool = False) -> str:
    """Rewrite the chunk sentence by sentence, after pairs of sentences that belong together if `pairs`; a rumour stays
    a rumour.
    """
    rules = [rule for relation in relations() for rule in forms(relation)]
    rules += [(_pattern(text), r"\g<who> met \g<whom>.") for text in hard_wording().meetings]
    for pattern, plain in rules if pairs else ():
        if ". " in pattern.pattern:
            chunk = pattern.sub(plain, chunk)

    def said(sentence: str) -> str:
        rumour, rest = ("Perhaps ", sentence[8:]) if sentence.startswith("Perhaps ") else ("", sentence)
        found = next(((m, plain) for pattern, plain in rules if (m := pattern.fullmatch(rest))), None)
        return rumour + (found[0].expand(found[1]) if found else rest)

    return " ".join(said(sentence) for sentence in re.split(r"(?<=\.) ", chunk))


async def measured(world: Diaries, count: int) -> tuple[dict[str, Right], Mapping[str, float]]:
    """Name of the memory -> correct or not; and the size of the oracle's memory as a share of the text, by kind."""
    tasks = world.split("test")[:count]
    memories = {task.id: remembered(world.diary(task)) for task in tasks}
    shares: dict[str, list[float]] = defaultdict(list)
    for task in tasks:
        share = memories[task.id].num_tokens / sum(map(words, chunks_of(task)))
        for kind in ("", str(task.metadata["kind"])):
            shares[kind].append(share)
    share = {kind: fmean(of) for kind, of in shares.items()}
    # as experiment=memory and experiment=memory_hard have it
    reader, found = (
        ClozeReader(search=bm25(b=0.0 if world.hard else 0.75)),
        defaultdict[str, Right](lambda: defaultdict(list)),
    )
    for task in tasks:
        answers = await reader.answer(questions_of(task), memories[task.id].passages())
        note(found["oracle"], task, answers)
    sampling = SamplingParams(max_tokens=1)
    for name, runner in memory_baselines(share, reader=reader, count_tokens=words, kind="fact").items():
        read: dict[str, Sequence[Task]] = {name: tasks}
        if name == SEARCHED:
            read |= {"told": [plainly(t) for t in tasks], "told_pairs": [plainly(t, pairs=True) for t in tasks]}
        for who, given in read.items():
            for task in given:
                episode = await runner.run(task, sample_index=0, stream="search", sampling=sampling)
                note(found[who], task, split(episode.answer or "", len(questions_of(task))))
    return found, share


def plainly(task: Task, pairs: bool = False) -> Task:
    metadata = {**task.metadata, CHUNKS: [in_plain_words(chunk, pairs) for chunk in chunks_of(task)]}
    return Task(
        id=task.id,
        messages=task.messages,
        references=task.references,
        metadata=metadata,
        data_source=task.data_source,
    )


def note(found: Right, task: Task, answers: Sequence[str]) -> None:
    for question, answer in zip(questions_of(task), answers, strict=True):
        for kind in ("", str(task.metadata["kind"]), question.kind):
            found[kind].append(answer in question.answers)


def table(found: Mapping[str, Right]) -> str:
    columns = ["", "dialogue", "long", *(kind for kind in KINDS if kind in found["oracle"])]
    rows = [["", *(column or "all" for column in columns)], ["---"] * (1 + len(columns))]
    rows += [[who, *(f"{fmean(of[c]):.3f}" if c in of else "" for c in columns)] for who, of in found.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=("plain", "hard"), default=["plain", "hard"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="task.world_seed")
    parser.add_argument("--tasks", type=int, default=110, help="of the test split")
    given = parser.parse_args(argv)
    for name in given.worlds:
        for seed in given.seeds:
            world = Diaries(world_seed=seed, train_diaries=1, dev_diaries=1, hard=name == "hard")
            found, share = asyncio.run(measured(world, given.tasks))
            sizes = ", ".join(f"{kind} {of:.3f}" for kind, of in share.items() if kind)
            print(f"\n{name}, world seed {seed}; memory of the oracle / text: {sizes}\n\n{table(found)}")


if __name__ == "__main__":
    main()
