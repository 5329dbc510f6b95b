"""The libraries, by name."""

from __future__ import annotations

from experiments.client_cases.agents import AGENTS, PYDANTIC
from experiments.client_cases.openai_cases import LANGCHAIN, OPENAI
from experiments.client_cases.shared import Client
from experiments.client_cases.wrappers import INSTRUCTOR, LITELLM

CLIENTS: dict[str, Client] = {each.package: each for each in (OPENAI, LANGCHAIN, PYDANTIC, AGENTS, LITELLM, INSTRUCTOR)}
