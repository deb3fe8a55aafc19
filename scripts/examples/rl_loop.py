"""GRPO in one loop: a policy of random weights finds out, by trial and error, how to open a lock.

The lock wants the letters "o" and "k". A turn of the policy is one letter, and the lock answers "click" if it is right.
The reward is the share of right letters. In 20 steps of 128 attempts it rises from chance (.004) to above .9.
"""

import asyncio

import agentgrpo as ag

WORD = "ok"


class Lock:
    """The environment. Every attempt gets a new object."""

    async def reset(self, task: ag.Task) -> ag.Observation:
        self.turns = 0
        return ag.Observation(messages=task.messages)

    async def step(self, turn: ag.Turn) -> ag.Observation:
        is_right = turn.content == WORD[self.turns]
        self.turns += 1
        reply = ag.Message(role="user", content="click" if is_right else "silence")
        done = ag.Exit.ANSWERED if self.turns == len(WORD) else None
        return ag.Observation(messages=[reply], reward=is_right / len(WORD), done=done)


async def main(steps: int = 20, group_size: int = 32) -> None:
    tokenizer = ag.train_tokenizer([], vocab_size=258, control_strings=(), words=())  # a token for every byte
    policy = ag.init_policy(tokenizer=tokenizer, hidden_size=64, num_layers=2)  # load_policy reads a published model
    renderer = ag.ReactRenderer(tokenizer=tokenizer)  # writes messages as tokens, and reads sampled tokens as turns
    locks = ag.OwnEnvironments(kind=Lock, renderer=renderer, min_context_left=1)
    engine = ag.HFEngine(model=policy.model, tokenizer=tokenizer, run_seed=0)  # samples from the policy
    runner = ag.PolicyRunner(environment=locks, engine=engine, renderer=renderer)  # takes turns until an attempt ends
    algorithm, optimizer = ag.Algorithm(), ag.AdamW(model=policy.model, lr=1e-2, warmup_steps=0)
    trainer = ag.Trainer(
        policy=policy, reference=None, optimizer=optimizer, algorithm=algorithm, total_steps=steps
    )  # no reference: the default algorithm has no KL term
    opening = (ag.Message(role="user", content="a lock"),)
    tasks = [ag.Task(id=str(number), messages=opening, references=(WORD,)) for number in range(4)]
    for step in range(steps):
        # Attempt every task group_size times. Each sampled token is recorded with its log-prob.
        sampling = ag.SamplingParams(max_tokens=1)
        groups = await ag.run_groups(runner, tasks, group_size=group_size, stream=f"train/{step}", sampling=sampling)
        # Score each attempt. Its advantage is (reward - mean of its group) / standard deviation of its group.
        scored = ag.score_with(lambda episode: sum(episode.turn_rewards), groups)
        advantages = ag.group_advantages(scored, algorithm)
        # Update the weights once. All sampled tokens of an attempt share its advantage; the lock's tokens are masked.
        trainer.update(ag.to_samples(scored, advantages), step=step)
        # The next step samples from the new weights.
        await engine.load_weights(step + 1)
        rewards = [reward.total for group in scored for reward in group.rewards if reward]
        print(f"step {step}: reward {sum(rewards) / len(rewards):.3f}")


if __name__ == "__main__":
    asyncio.run(main())
