"""Judges of search rounds: is the evidence enough to answer from? Their interface is judges.base.EvidenceJudge.

lexical     reads: by words that question and passages share, along chains of passages; the default
embedding   like lexical, with an embedder that finds other words with the meaning of the question's
heuristic   counts, without reading
gold        knows which passages prove the answer; for evaluation
llm         a language model reads
reranker    a cross-encoder, or an entailment model, reads
chains.py, rarity.py, alike.py   used by lexical and embedding
measure.py  how well a judge tells sufficient from insufficient evidence
"""
