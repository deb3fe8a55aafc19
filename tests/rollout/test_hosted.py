"""Episodes whose policy is somebody else: the loop, the limits and the reward of a run."""

from __future__ import annotations

import pytest

from agentgrpo.core.errors import EnvironmentFailure
from agentgrpo.core.messages import ParsedTurn, ToolReply
from agentgrpo.core.types import Exit, Message, ToolCall
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.own import own_environments
from agentgrpo.environments.tools.environment import ToolEnvironments
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rewards.own import EnvironmentTerm
from agentgrpo.rewards.reward import Reward
from agentgrpo.rollout.hosted import Host, HostedEpisode
from agentgrpo.tools.workspace import Workspaces
from tests.builders import task
from tests.environments.scripted import tokenizer
from tests.renderers.reading import ReadingRenderer


class Shop:
    """Buy two."""

    open = 0

    def __init__(self) -> None:
        self.basket: list[str] = []

    def reset(self) -> str:
        type(self).open += 1
        return "Buy two."

    def add(self, item: str) -> str:
        """Puts something into the basket.

        Args:
            item: what to buy
        """
        self.basket.append(item)
        return f"{len(self.basket)} in it"

    def get_reward(self) -> float:
        return len(self.basket) / 2

    def close(self) -> None:
        type(self).open -= 1


@pytest.fixture
def host() -> Host:
    renderer = ReactRenderer(tokenizer=tokenizer())
    environment = own_environments(Shop)(renderer=renderer, tools={}, workspaces=Workspaces(), max_turns=3)
    assert isinstance(environment, ToolEnvironments)
    reward = Reward(judge=ExactMatch(), terms={"environment": EnvironmentTerm("reward", weight=1.0)})
    return Host(environment=environment, renderer=renderer, reward=reward, sampling=SamplingParams(max_tokens=200))


def buys(item: str) -> ParsedTurn:
    return ParsedTurn(calls=(ToolCall(name="add", arguments={"item": item}),))


async def test_turns_are_answered_and_the_end_is_paid(host: Host) -> None:
    assert await host.has_tools(task())
    episode = HostedEpisode(host)
    seen = await episode.reset(task("Go shopping."))
    [opening] = seen.messages
    assert isinstance(opening, Message)
    assert opening.content.endswith("Go shopping.\nBuy two.")
    assert [tool.name for tool in seen.tools or ()] == ["add"]
    seen = await episode.act(buys("apple"))
    [reply] = seen.messages
    assert isinstance(reply, ToolReply)
    assert (reply.text, seen.reward, seen.episode) == ("1 in it", 0.0, None)
    seen = await episode.act(ParsedTurn(answer="done"))
    assert seen.episode is not None
    assert (seen.episode.exit, seen.episode.answer, seen.reward) == (Exit.ANSWERED, "done", 0.5)
    with pytest.raises(EnvironmentFailure, match="no episode is under way; reset the environment"):
        await episode.act(buys("pear"))
    assert Shop.open == 0


async def test_the_limits_are_those_of_a_run(host: Host) -> None:
    episode = HostedEpisode(host)
    seen = await episode.reset(task())
    for _ in range(3):
        assert seen.episode is None
        seen = await episode.act(buys("apple"))
    assert seen.episode is not None
    assert (seen.episode.exit, seen.reward) == (Exit.MAX_TURNS, 1.5)


async def test_an_episode_that_is_given_up_is_closed(host: Host) -> None:
    episode, other = HostedEpisode(host), HostedEpisode(host)
    for _ in range(2):
        await episode.reset(task())
        await other.reset(task())
        assert Shop.open == 2
    await episode.act(buys("apple"))
    await episode.close()
    await other.close()
    assert Shop.open == 0


async def test_a_turn_of_megabytes_is_read_as_far_as_a_turn_may_go() -> None:
    renderer = ReadingRenderer()
    environment = own_environments(Shop)(renderer=renderer, tools={}, workspaces=Workspaces(), max_turns=3)
    reward = Reward(judge=ExactMatch(), terms={"environment": EnvironmentTerm("reward", weight=1.0)})
    host = Host(environment=environment, renderer=renderer, reward=reward, sampling=SamplingParams(max_tokens=50))
    for turn in ("x " * 5_000_000, ParsedTurn(answer="x " * 5_000_000), buys("x " * 5_000_000)):
        episode = HostedEpisode(host)
        await episode.reset(task())
        ended = [(await episode.act(turn)).episode for _ in range(3)][-1]
        assert ended is not None
        assert [sum(branch.loss_mask) for branch in ended.branches] == [3 * 50]
    assert renderer.most <= 2 * 50 * renderer.longest_token
