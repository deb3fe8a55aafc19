"""What may be named in YAML: which name leads to which class, and which node may stand where. Texts only.

Whoever adds a part adds one line here and one file to configs/.
"""

from __future__ import annotations

from collections.abc import Mapping

REGISTRY: Mapping[str, Mapping[str, str] | str] = {
    "task": {
        "almanac": "agentgrpo.tasks.almanac:Almanac",
        "diary": "agentgrpo.tasks.diary:Diaries",
        "jsonl": "agentgrpo.tasks.jsonl:jsonl",
        "memory_files": "agentgrpo.tasks.memory_files:MemoryFiles",
        "questions": "agentgrpo.tasks.questions:questions",
        "workshop": "agentgrpo.tasks.workshop:Workshop",
    },
    "model": {
        "almanac_tiny": "agentgrpo.recipes.warm_start:WarmStart",
        "diary_tiny": "agentgrpo.recipes.warm_start:WarmStart",
        "path": "agentgrpo.build:ModelPath",
        "workshop_tiny": "agentgrpo.recipes.warm_start:WarmStart",
    },
    "engine": {
        "hf": "agentgrpo.engines.hf:HFEngine",
        "openai": "agentgrpo.engines.remote.openai:OpenAIEngine",
        "scripted": "agentgrpo.engines.script:Scripted",
        "sglang": "agentgrpo.engines.remote.sglang:sglang",
        "vllm": "agentgrpo.engines.remote.vllm:vllm",
    },
    "agent": {
        "memory": "agentgrpo.agents.memory:MemoryAgent",
        "search": "agentgrpo.agents.search:SearchAgent",
        "tool": "agentgrpo.agents.tool:ToolAgent",
    },
    "retriever": {
        "embedded": "agentgrpo.retrievers.embedded:embedded",
        "faiss_index": "agentgrpo.retrievers.faiss_index:faiss_index",
        "http": "agentgrpo.retrievers.http:remote",
        "pgvector": "agentgrpo.retrievers.pgvector:pgvector",
        "qdrant": "agentgrpo.retrievers.qdrant:qdrant",
    },
    "indexer": {
        "faiss_index": "agentgrpo.retrievers.faiss_index:indexer",
        "pgvector": "agentgrpo.retrievers.pgvector:indexer",
        "qdrant": "agentgrpo.retrievers.qdrant:indexer",
    },
    "web": {
        "none": "agentgrpo.build:nothing",
        "brave": "agentgrpo.retrievers.web.brave:Brave",
        "searxng": "agentgrpo.retrievers.web.searxng:SearxNG",
        "serpapi": "agentgrpo.retrievers.web.serpapi:SerpApi",
        "serper": "agentgrpo.retrievers.web.serper:Serper",
        "tavily": "agentgrpo.retrievers.web.tavily:Tavily",
    },
    "tool": {
        "calculator": "agentgrpo.tools.calculator:Calculator",
        "fetch": "agentgrpo.tools.fetch:Fetch",
        "files": "agentgrpo.tools.files:Files",
        "mcp": "agentgrpo.tools.mcp:Mcp",
        "python": "agentgrpo.tools.python:PythonTool",
        "search": "agentgrpo.tools.search:Search",
    },
    "fetcher": {
        "none": "agentgrpo.build:nothing",
        "http": "agentgrpo.retrievers.http:HttpPageFetcher",
        "pages": "agentgrpo.retrievers.pages:Pages",
    },
    "reranker": {
        "none": "agentgrpo.build:nothing",
        "lexical": "agentgrpo.retrievers.rerank:LexicalReranker",
        "cross_encoder": "agentgrpo.recipes.cross_encoder:CrossEncoder",
        "http": "agentgrpo.retrievers.http:HttpReranker",
    },
    "counterfactual": {
        "none": "agentgrpo.build:nothing",
        "blank": "agentgrpo.retrievers.counterfactual:blank",
        "shuffled": "agentgrpo.retrievers.counterfactual:shuffled",
        "swapped": "agentgrpo.retrievers.counterfactual:swapped",
    },
    "evidence": {"heuristic": "agentgrpo.judges.evidence:HeuristicEvidence"},
    "judge": {
        "exact_match": "agentgrpo.judges.answers:ExactMatch",
        "token_f1": "agentgrpo.judges.answers:TokenF1",
        "contains": "agentgrpo.judges.answers:Contains",
        "gold_agreement": "agentgrpo.judges.answers:GoldAgreement",
        "keywords": "agentgrpo.judges.keywords:Keywords",
        "numeric": "agentgrpo.judges.numeric:Numeric",
        "choice": "agentgrpo.judges.choice:Choice",
        "composite": "agentgrpo.judges.composite:Composite",
        "questions": "agentgrpo.judges.questions:Questions",
        "route": "agentgrpo.judges.route:Route",
        "llm": "agentgrpo.judges.llm.judge:LLMJudge",
        "judger": "agentgrpo.judges.judger:JudgerJudge",
    },
    "judger": {"ground_truth": "agentgrpo.judges.judger:GroundTruth"},
    "completer": {
        "http": "agentgrpo.judges.llm.http:HttpCompleter",
        "local": "agentgrpo.recipes.local_completer:LocalCompleter",
    },
    "memory_search": {
        "bm25": "agentgrpo.memory.search:bm25",
        "embedding": "agentgrpo.memory.search:embedding",
        "hybrid": "agentgrpo.memory.search:hybrid",
    },
    "embedder": {
        "encoder": "agentgrpo.recipes.encoder:Encoder",
        "hashing": "agentgrpo.retrievers.embedder:HashingEmbedder",
        "openai": "agentgrpo.retrievers.openai_embedder:OpenAIEmbedder",
    },
    "reader": {
        "agentic": "agentgrpo.memory.reader:AgenticReader",
        "cloze": "agentgrpo.memory.reader:ClozeReader",
        "completer": "agentgrpo.memory.reader:CompleterReader",
    },
    "validity": {
        "asserted": "agentgrpo.memory.validity:AssertedValidity",
        "llm": "agentgrpo.memory.validity:LLMValidity",
        "none": "agentgrpo.memory.validity:NoValidity",
    },
    "reward": {"weighted": "agentgrpo.rewards.reward:Reward"},
    "term": "agentgrpo.rewards:TERMS",
    "algorithm": dict.fromkeys(
        (
            *("grpo", "grpo_token_mean", "dr_grpo", "dapo", "bnpo", "gspo", "cispo", "sapo", "luspo", "vespo", "rloo"),
            *("search_r1", "mem_alpha"),
        ),
        "agentgrpo.grpo.algorithm:Algorithm",
    ),
    "optimizer": {"adamw": "agentgrpo.training.optimizer:AdamW"},
}
"""kind -> {name in YAML: "module:attribute"}, imported when chosen; a text is where a package keeps such a mapping."""

UNNAMED: Mapping[str, str] = {
    "rollout": "agentgrpo.settings:RolloutSettings",
    "run": "agentgrpo.settings:RunSettings",
    "eval": "agentgrpo.settings:EvalSettings",
    "hardware": "agentgrpo.hardware:Hardware",
    "judge_part": "agentgrpo.build:judge_part",
    "lora": "agentgrpo.settings:LoraSettings",
    "guard": "agentgrpo.recipes.guards:Guard",
    "question_source": "agentgrpo.tasks.questions.source:Source",
    "question_filter": "agentgrpo.tasks.questions.source:Filter",
    "cassette": "agentgrpo.metering:CassetteSettings",
    "budget": "agentgrpo.metering:Budget",
    "prices": "agentgrpo.metering.budget:Prices",
    "limits": "agentgrpo.metering.budget:Limits",
    "episode_limits": "agentgrpo.metering.budget:EpisodeLimits",
    "calls": "agentgrpo.metering.budget:Calls",
}
"""Kinds with one implementation: their nodes say no `name`."""

ROOT: Mapping[str, str] = {
    "task": "task",
    "model": "model",
    "engine": "engine",
    "agent": "agent",
    "retriever": "retriever",
    "counterfactual": "counterfactual",
    "tools": "tool*",
    "judge": "judge",
    "reward": "reward",
    "rollout": "rollout",
    "algorithm": "algorithm",
    "optimizer": "optimizer",
    "guards": "guard*",
    "cassette": "cassette",
    "budget": "budget",
    "hardware": "hardware",
    "run": "run",
}
NESTED: Mapping[str, Mapping[str, str]] = {
    "": ROOT,
    "task": {"sources": "question_source*"},
    "question_source": {"filter": "question_filter"},
    "model": {"lora": "lora"},
    "reward": {"terms": "term*"},
    "retriever": {"embedder": "embedder", "web": "web"},
    "indexer": {"embedder": "embedder"},
    "agent": {
        "evidence": "evidence",
        "reranker": "reranker",
        "fetcher": "fetcher",
        "reader": "reader",
        "validity": "validity",
    },
    "judge": {
        "judge": "judge",
        "parts": "judge_part*",
        "routes": "judge*",
        "completer": "completer",
        "judger": "judger",
    },
    "judge_part": {"judge": "judge"},
    "memory_search": {"embedder": "embedder"},
    "reader": {"search": "memory_search", "completer": "completer"},
    "validity": {"completer": "completer"},
    "budget": {"prices": "prices", "per_episode": "episode_limits", "per_step": "limits", "per_run": "limits"},
    "limits": {"calls": "calls"},
    "episode_limits": {"calls": "calls"},
    "run": {"eval": "eval"},
}
"""kind -> {key: kind of the node there; with a * a mapping of such nodes by name}. "" is the root."""

PROVIDED: Mapping[str, frozenset[str]] = {
    "agent": frozenset({"prices", "call_prices", "describe_tools"}),
    "engine": frozenset({"run_seed", "own_weights", "context_limit", "sync_dir", "rank"}),
    "reranker": frozenset({"thesaurus"}),
}
"""kind -> arguments of plain type that the wiring injects, so that they are no YAML keys."""

FROZEN: frozenset[str] = frozenset({"reader", "validity"})
"""Kinds of parts that must never see what is trained: neither they nor any part in them are given objects of the
wiring."""

WRAPPERS: Mapping[str, str] = {
    "tool": "agentgrpo.tools.functions:FunctionTool",
    "judge": "agentgrpo.judges.judger:JudgerJudge",
    "judger": "agentgrpo.judges.judger:as_it_is",
}
"""kind -> the class that makes such a part of a plain function of the user's, which it gets as its first argument."""

ADAPTERS: Mapping[str, str] = {"judge": "agentgrpo.judges.judger:as_judge"}
"""kind -> what makes such a part of whatever was built; it leaves alone what is one."""

PROGRAMS: Mapping[str, tuple[object, ...]] = {
    "command": (None, "", []),
    "python": (None,),
    "sandbox": ("bubblewrap",),
}
"""Keys of a tool that start programs of this machine, or let those of the policy out -> their values that do not."""
