"""The default judge tells found from not found in the embedded world; counting does not."""

from __future__ import annotations

from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.judges.evidence.measure import evidence_figures, judged_evidence
from agentgrpo.worlds.almanac.dataset import Almanac
from scripts.evidence_table import play


async def test_auc_and_gate_in_the_almanac() -> None:
    world = Almanac(world_seed=5, num_companies=20, dev_companies=2, test_companies=20)
    tasks = world.split("test")[:30]
    lexical = LexicalEvidence(corpora=world.corpora(), thesaurus=world.thesaurus())
    reads, counts = [
        evidence_figures(judged_evidence(await play(world, tasks, judge, top_k=2)))
        for judge in (lexical, HeuristicEvidence())
    ]
    assert min(reads["supported"] or 0, reads["unsupported"] or 0) > 50
    assert (reads["auc"] or 0) >= 0.9
    assert (reads["sufficient_where_supported"] or 0) >= 0.95
    assert (reads["sufficient_where_unsupported"] or 0) <= 0.2
    assert (counts["auc"] or 0) < 0.75
    assert (counts["sufficient_where_unsupported"] or 0) > 0.8
