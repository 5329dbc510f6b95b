"""The libraries, by name."""

from __future__ import annotations

from experiments.client_cases.agents import AGENTS, PYDANTIC
from experiments.client_cases.openai_cases import LANGCHAIN, OPENAI
from experiments.client_cases.other_apis import ANTHROPIC, OLLAMA
from experiments.client_cases.shared import Client
from experiments.client_cases.wrappers import INSTRUCTOR, LITELLM

ALL = (OPENAI, LANGCHAIN, PYDANTIC, AGENTS, LITELLM, INSTRUCTOR, ANTHROPIC, OLLAMA)
CLIENTS: dict[str, Client] = {each.package: each for each in ALL}
