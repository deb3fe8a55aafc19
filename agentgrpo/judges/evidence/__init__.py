"""Is what was found enough to answer from? Judges of search rounds, of one contract (judges.base.EvidenceJudge).

lexical     reads: by words that question and passages share, along chains of passages; the default
heuristic   counts; it reads nothing
gold        knows which passages prove the answer; for evaluation
llm         a language model reads
measure.py  how well any of them tells found from not found
"""
