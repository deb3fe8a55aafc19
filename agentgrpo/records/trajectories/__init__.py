"""Trajectory files: every episode of a step or an evaluation, written before any filter.

    train-000012.jsonl           line 1: {"schema_version","split","step","total","scored","reward":{mean,std,max,min},
                                 "response_len":{the same}}; then one line per episode: see TrajectoryRecord
    train-000012.timings.jsonl   one line per episode: its id, its seconds by stage and, as "tools", those of each
                                 entry of `agent.tools`; clocks do not repeat

The first file is a pure function of the episodes: the same run writes the same bytes. It is ASCII with every control
character escaped, so that no text of a model or a document can break a line, a reader or a terminal. A number that is
not finite is written as null. Read it with `read_trajectories`, or with any JSON tool, line by line.

`agent.messages` has one entry per Segment: {"branch","role","sampled","num_tokens","policy_version","content"}; the
loss mask is `sampled`, `num_tokens` times. `agent.tools` has one entry per call: {"name","arguments","outcome","turn",
"num_results","result_ids","cached","detail","num_bytes" (of the whole result),"was_cut","cost"}. `memory` has an
entry for each chunk that a memory agent read: {"chunk","changes","failed","tokens","entries"} (of the memory after it);
a change is {"op","before","after"} with the entry {"id","kind","text","chunk"} as it was and is, null where there is
none, so that the changes lead from an empty memory to the last one; "failed" holds {"call","detail"}. `tokens` (null
where switched off) holds the ids of all segments and the logprobs of the sampled ones, packed: see `packing`.
"""

from agentgrpo.records.trajectories.reading import read_summary, read_trajectories
from agentgrpo.records.trajectories.record import SCHEMA_VERSION, TrajectoryRecord
from agentgrpo.records.trajectories.writing import write_trajectories

__all__ = ["SCHEMA_VERSION", "TrajectoryRecord", "read_summary", "read_trajectories", "write_trajectories"]
