"""What is tried with each library: methods named after the columns of a table, which fail where a case fails."""

from experiments.client_cases.openai_cases import Instructor, LangChain, LiteLLM, OpenAI
from experiments.client_cases.other_cases import Agents, Anthropic, Ollama, PydanticAI
from experiments.client_cases.shared import Client

ALL: tuple[type[Client], ...] = (OpenAI, LangChain, PydanticAI, Agents, LiteLLM, Instructor, Anthropic, Ollama)
CLIENTS = {each.package: each for each in ALL}
