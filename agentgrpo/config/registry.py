"""The names in YAML: the class of each name, and the kinds of nodes at each key. The values are strings only.

To add a part, add one line here and one file to configs/.
"""

from __future__ import annotations

from collections.abc import Mapping

REGISTRY: Mapping[str, Mapping[str, str] | str] = {
    "task": {
        "almanac": "agentgrpo.worlds.almanac.dataset:Almanac",
        "archive": "agentgrpo.worlds.archive.dataset:Archive",
        "diary": "agentgrpo.worlds.diary.dataset:Diaries",
        "glossary": "agentgrpo.worlds.glossary.dataset:Glossary",
        "gymnasium": "agentgrpo.tasks.seeds:Seeds",
        "jsonl": "agentgrpo.tasks.jsonl:jsonl",
        "memory_files": "agentgrpo.tasks.memory_files.dataset:MemoryFiles",
        "questions": "agentgrpo.tasks.questions.dataset:questions",
        "suite": "agentgrpo.tasks.suite:SuiteTasks",
        "reasoning_gym": "agentgrpo.environments.published.reasoning_gym:ReasoningGymTasks",
        "textarena": "agentgrpo.tasks.seeds:Seeds",
        "seeds": "agentgrpo.tasks.seeds:Seeds",
        "verifiers": "agentgrpo.environments.verifiers.dataset:VerifiersRows",
        "workshop": "agentgrpo.worlds.workshop.dataset:Workshop",
    },
    "demonstrations": {
        "none": "agentgrpo.config.build:nothing",
        "chat": "agentgrpo.rollout.demonstrations.chat:ChatFile",
        "oracle": "agentgrpo.rollout.demonstrations.oracle:Oracle",
        "recorded": "agentgrpo.rollout.demonstrations.recorded:RecordedRuns",
    },
    "model": {
        "almanac_tiny": "agentgrpo.run.warm_start:WarmStart",
        "diary_tiny": "agentgrpo.run.warm_start:WarmStart",
        "path": "agentgrpo.config.build:ModelPath",
        "workshop_tiny": "agentgrpo.run.warm_start:WarmStart",
    },
    "engine": {
        "hf": "agentgrpo.engines.hf:HFEngine",
        "openai": "agentgrpo.engines.remote.openai:OpenAIEngine",
        "scripted": "agentgrpo.engines.scripted:Scripted",
        "sglang": "agentgrpo.engines.remote.sglang:sglang",
        "vllm": "agentgrpo.engines.remote.vllm:vllm",
    },
    "environment": {
        "gymnasium": "agentgrpo.environments.published.gymnasium:GymnasiumEnvironments",
        "memory": "agentgrpo.environments.memory.environment:MemoryEnvironments",
        "openenv": "agentgrpo.environments.openenv.environment:OpenEnvEnvironments",
        "program": "agentgrpo.environments.program.environment:ProgramEnvironments",
        "reasoning_gym": "agentgrpo.environments.published.reasoning_gym:ReasoningGymEnvironments",
        "search": "agentgrpo.environments.search.environment:SearchEnvironments",
        "textarena": "agentgrpo.environments.published.textarena:TextArenaEnvironments",
        "tools": "agentgrpo.environments.tools.environment:ToolEnvironments",
        "verifiers": "agentgrpo.environments.verifiers.environment:VerifiersEnvironments",
    },
    "opponent": {"random": "agentgrpo.environments.published.textarena_worker:RandomOpponent"},
    "retriever": {
        "embedded": "agentgrpo.retrieval.embedded:embedded",
        "faiss_index": "agentgrpo.retrieval.faiss_index:faiss_index",
        "http": "agentgrpo.retrieval.http:remote",
        "pgvector": "agentgrpo.retrieval.pgvector:pgvector",
        "qdrant": "agentgrpo.retrieval.qdrant:qdrant",
    },
    "indexer": {
        "faiss_index": "agentgrpo.retrieval.faiss_index:indexer",
        "pgvector": "agentgrpo.retrieval.pgvector:indexer",
        "qdrant": "agentgrpo.retrieval.qdrant:indexer",
    },
    "web": {
        "none": "agentgrpo.config.build:nothing",
        "brave": "agentgrpo.retrieval.web:Brave",
        "searxng": "agentgrpo.retrieval.web:SearxNG",
        "serpapi": "agentgrpo.retrieval.web:SerpApi",
        "serper": "agentgrpo.retrieval.web:Serper",
        "tavily": "agentgrpo.retrieval.web:Tavily",
    },
    "tool": {
        "calculator": "agentgrpo.tools.calculator:Calculator",
        "fetch": "agentgrpo.tools.fetch:Fetch",
        "files": "agentgrpo.tools.files:Files",
        "mcp": "agentgrpo.tools.mcp.toolset:Mcp",
        "python": "agentgrpo.tools.python:PythonTool",
        "search": "agentgrpo.tools.search:SearchTool",
    },
    "hidden_tests": {
        "none": "agentgrpo.config.build:nothing",
        "sandbox": "agentgrpo.tools.hidden_tests.sandboxed:HiddenTests",
    },
    "fetcher": {
        "none": "agentgrpo.config.build:nothing",
        "http": "agentgrpo.retrieval.http:HttpPageFetcher",
        "pages": "agentgrpo.retrieval.pages:Pages",
        "task": "agentgrpo.retrieval.task_pages:TaskPages",
    },
    "context": {
        "none": "agentgrpo.config.build:nothing",
        "drop": "agentgrpo.environments.search.context:dropping",
        "summary": "agentgrpo.environments.search.context:summarising",
    },
    "reranker": {
        "none": "agentgrpo.config.build:nothing",
        "lexical": "agentgrpo.retrieval.rerank:LexicalReranker",
        "cross_encoder": "agentgrpo.models.cross_encoder:CrossEncoder",
        "http": "agentgrpo.retrieval.http:HttpReranker",
    },
    "counterfactual": {
        "none": "agentgrpo.config.build:nothing",
        "blank": "agentgrpo.retrieval.counterfactual:blank",
        "shuffled": "agentgrpo.retrieval.counterfactual:shuffled",
        "swapped": "agentgrpo.retrieval.counterfactual:swapped",
    },
    "evidence": {
        "embedding": "agentgrpo.judges.evidence.embedding:EmbeddingEvidence",
        "gold": "agentgrpo.judges.evidence.gold:GoldEvidence",
        "heuristic": "agentgrpo.judges.evidence.heuristic:HeuristicEvidence",
        "lexical": "agentgrpo.judges.evidence.lexical:LexicalEvidence",
        "llm": "agentgrpo.judges.evidence.llm:LLMEvidence",
        "reranker": "agentgrpo.judges.evidence.reranker:RerankerEvidence",
    },
    "judge": {
        "exact_match": "agentgrpo.judges.answers:ExactMatch",
        "token_f1": "agentgrpo.judges.answers:TokenF1",
        "contains": "agentgrpo.judges.answers:Contains",
        "gold_agreement": "agentgrpo.judges.answers:GoldAgreement",
        "keywords": "agentgrpo.judges.answers:Keywords",
        "numeric": "agentgrpo.judges.answers:Numeric",
        "choice": "agentgrpo.judges.answers:Choice",
        "composite": "agentgrpo.judges.composed:Composite",
        "questions": "agentgrpo.judges.composed:Questions",
        "route": "agentgrpo.judges.composed:Route",
        "llm": "agentgrpo.judges.llm.judge:LLMJudge",
        "judger": "agentgrpo.judges.judger:JudgerJudge",
        "report": "agentgrpo.judges.report.judge:ReportJudge",
        "math": "agentgrpo.judges.math.judge:MathJudge",
    },
    "support": {
        "lexical": "agentgrpo.judges.report.support:LexicalSupport",
        "llm": "agentgrpo.judges.report.support:LLMSupport",
    },
    "judger": {"ground_truth": "agentgrpo.judges.judger:GroundTruth"},
    "completer": {
        "http": "agentgrpo.judges.llm.completer:HttpCompleter",
        "local": "agentgrpo.models.completer:LocalCompleter",
    },
    "memory_search": {
        "bm25": "agentgrpo.environments.memory.search:bm25",
        "embedding": "agentgrpo.environments.memory.search:embedding",
        "hybrid": "agentgrpo.environments.memory.search:hybrid",
    },
    "embedder": {
        "encoder": "agentgrpo.models.encoder:Encoder",
        "hashing": "agentgrpo.retrieval.embedder:HashingEmbedder",
        "openai": "agentgrpo.retrieval.openai_embedder:OpenAIEmbedder",
    },
    "reader": {
        "agentic": "agentgrpo.environments.memory.reader:AgenticReader",
        "cloze": "agentgrpo.environments.memory.reader:ClozeReader",
        "completer": "agentgrpo.environments.memory.reader:CompleterReader",
    },
    "validity": {
        "asserted": "agentgrpo.environments.memory.validity:AssertedValidity",
        "llm": "agentgrpo.environments.memory.validity:LLMValidity",
        "none": "agentgrpo.environments.memory.validity:NoValidity",
    },
    "reward": {"weighted": "agentgrpo.rewards.reward:Reward"},
    "term": "agentgrpo.rewards.registry:TERMS",
    "algorithm": dict.fromkeys(
        (
            *("grpo", "grpo_token_mean", "dr_grpo", "dapo", "bnpo", "gspo", "cispo", "sapo", "luspo", "vespo"),
            *("rloo", "max_rl", "search_r1", "mem_alpha", "sft", "raft"),
        ),
        "agentgrpo.grpo.algorithm:Algorithm",
    ),
    "loss": "agentgrpo.grpo.losses:LOSSES",
    "advantage": "agentgrpo.grpo.advantages:ADVANTAGES",
    "optimizer": {"adamw": "agentgrpo.training.optimizer:AdamW"},
}
"""kind -> {name in YAML: "module:attribute"}, imported when chosen. A string is the location of such a mapping."""

UNNAMED: Mapping[str, str] = {
    "rollout": "agentgrpo.config.settings:RolloutSettings",
    "run": "agentgrpo.config.settings:RunSettings",
    "eval": "agentgrpo.config.settings:EvalSettings",
    "hardware": "agentgrpo.config.hardware:Hardware",
    "judge_part": "agentgrpo.config.build:judge_part",
    "lora": "agentgrpo.config.settings:LoraSettings",
    "cold_start": "agentgrpo.config.settings:ColdStartSettings",
    "feedback": "agentgrpo.rewards.feedback:Feedback",
    "guard": "agentgrpo.run.guards:Guard",
    "member": "agentgrpo.config.settings:MemberSettings",
    "question_source": "agentgrpo.tasks.questions.intake:QuestionSource",
    "question_filter": "agentgrpo.tasks.questions.intake:Filter",
    "cassette": "agentgrpo.services.cassette:CassetteSettings",
    "budget": "agentgrpo.services.budget:Budget",
    "prices": "agentgrpo.services.budget:Prices",
    "limits": "agentgrpo.services.budget:SpendingLimits",
    "episode_limits": "agentgrpo.services.budget:EpisodeLimits",
    "calls": "agentgrpo.services.budget:CallLimits",
}
"""Kinds with one implementation; their nodes have no `name`."""

ROOT: Mapping[str, str] = {
    "task": "task",
    "model": "model",
    "demonstrations": "demonstrations",
    "engine": "engine",
    "retriever": "retriever",
    "counterfactual": "counterfactual",
    "tools": "tool*",
    "judge": "judge",
    "reward": "reward",
    "suite": "member*",
    "environment": "environment",
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
    "member": {
        "task": "task",
        "environment": "environment",
        "retriever": "retriever",
        "tools": "tool*",
        "judge": "judge",
        "reward": "reward",
    },
    "task": {"sources": "question_source*"},
    "question_source": {"filter": "question_filter"},
    "model": {"lora": "lora", "cold_start": "cold_start"},
    "reward": {"terms": "term*", "feedback": "feedback"},
    "retriever": {"embedder": "embedder", "web": "web"},
    "indexer": {"embedder": "embedder"},
    "environment": {
        "evidence": "evidence",
        "reranker": "reranker",
        "fetcher": "fetcher",
        "context": "context",
        "reader": "reader",
        "tests": "hidden_tests",
        "validity": "validity",
    },
    "judge": {
        "judge": "judge",
        "parts": "judge_part*",
        "routes": "judge*",
        "completer": "completer",
        "judger": "judger",
        "support": "support",
    },
    "support": {"completer": "completer"},
    "judge_part": {"judge": "judge"},
    "evidence": {"completer": "completer", "embedder": "embedder", "reranker": "reranker"},
    "memory_search": {"embedder": "embedder"},
    "reader": {"search": "memory_search", "completer": "completer"},
    "validity": {"completer": "completer"},
    "budget": {"prices": "prices", "per_episode": "episode_limits", "per_step": "limits", "per_run": "limits"},
    "limits": {"calls": "calls"},
    "episode_limits": {"calls": "calls"},
    "run": {"eval": "eval"},
}
"""kind -> {key: kind of the inner node; with a * a mapping of such nodes by name}. "" is the root."""

UNSUITED = "suite"
"""The task set of a run in which every member of the suite has its own task set."""

FUNCTIONS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {"loss": "loss", "advantage": "advantage"},
    "environment": {"function": "program", "opponent": "opponent"},
}
"""kind -> {key that names a function: kind of the function}. The value is a function of that kind, the user's
module:function, or null for no function."""

PROVIDED: Mapping[str, frozenset[str]] = {
    "environment": frozenset({"prices", "call_prices", "describe_tools", "run_files"}),
    "engine": frozenset({"run_seed", "own_weights", "context_limit", "sync_dir", "rank", "unused_ids"}),
    "evidence": frozenset({"thesaurus"}),
    "reranker": frozenset({"thesaurus"}),
}
"""kind -> arguments of plain type that the wiring injects and that are therefore no YAML keys."""

FROZEN: frozenset[str] = frozenset({"reader", "validity"})
"""Kinds of parts that must never see the trained model: they and their inner parts get no objects of the wiring."""

WRAPPERS: Mapping[str, str] = {
    "environment": "agentgrpo.environments.own:own_environments",
    "tool": "agentgrpo.tools.functions:FunctionTool",
    "judge": "agentgrpo.judges.judger:JudgerJudge",
    "judger": "agentgrpo.judges.judger:as_it_is",
    "term": "agentgrpo.rewards.own:FunctionTerm",
    "environment_term": "agentgrpo.rewards.own:EnvironmentTerm",
}
"""kind -> the class that wraps a user's plain function, its first argument, as a part of this kind."""

ADAPTERS: Mapping[str, str] = {"judge": "agentgrpo.judges.judger:as_judge", "term": "agentgrpo.rewards.own:as_term"}
"""kind -> the function that turns any built object into a part of this kind; such a part is returned unchanged."""

PROGRAMS: Mapping[str, tuple[object, ...]] = {
    "command": (None, "", []),
    "python": (None,),
    "sandbox": ("bubblewrap", True, False),  # of an environment true or false: its command is checked in either case
}
"""Keys of a tool, the environment or the tasks that start programs on this machine, or let the policy's programs out of
the sandbox -> harmless values of these keys."""

PACKAGES: Mapping[str, tuple[str, str]] = {"verifiers": ("id", ""), "gymnasium": ("id", ":")}
"""Environment or task set -> its key that can name a package to load, and a string in every value with a package."""

CONNECTS: frozenset[str] = frozenset(
    {"openai", "sglang", "vllm", "http", "brave", "searxng", "serpapi", "serper", "tavily", "fetch", "pages"}
)
"""Names of parts that open connections, even if the configuration gives no address."""
