"""An agent of mini-swe-agent, which forgets an answer that has no call. Its commands are sums."""

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel

from tests.environments.program.agents.calculating import compute


class Desk:
    """In the place of a shell."""

    def execute(self, action, cwd=""):
        command = action["command"]
        if command.startswith("submit"):
            submitted = command.removeprefix("submit").strip()
            end = {"exit_status": "Submitted", "submission": submitted}
            raise Submitted({"role": "exit", "content": submitted, "extra": end})
        return {"output": compute(command), "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **kwargs):
        return kwargs

    def serialize(self):
        return {}


def run(task, base_url):
    model = LitellmModel(
        model_name="openai/any",
        model_kwargs={"api_base": base_url, "api_key": "none"},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        Desk(),
        system_template="Use bash.",
        instance_template="{{task}}",
        step_limit=3,
    )
    return agent.run(task["question"])["submission"]
