"""Is what was found enough to answer from? Judges of search rounds, of one contract (judges.base.EvidenceJudge).

lexical     reads: by words that question and passages share, along chains of passages; the default
embedding   the same, with an embedder that knows other words for those of the question
heuristic   counts; it reads nothing
gold        knows which passages prove the answer; for evaluation
llm         a language model reads
reranker    a cross-encoder, or a model of entailment, reads
chains.py, rarity.py, alike.py   what lexical and embedding read with
measure.py  how well any of them tells found from not found
"""
