"""What calls to services outside cost, how much they may, and what they answered: Meter, budget and cassette.

retrievers.metered, judges.llm.metered --> Meter --> Cassette (replayed?) --> Ledger (within the budget?) --> live
"""

from agentgrpo.metering.asking import asking_episode, asking_step
from agentgrpo.metering.budget import OVER_BUDGET, Budget
from agentgrpo.metering.cassette import CassetteMiss, CassetteSettings
from agentgrpo.metering.meter import Answer, Form, Meter

__all__ = [
    "OVER_BUDGET",
    "Answer",
    "Budget",
    "CassetteMiss",
    "CassetteSettings",
    "Form",
    "Meter",
    "asking_episode",
    "asking_step",
]
