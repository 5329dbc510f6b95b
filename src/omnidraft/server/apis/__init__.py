"""The APIs, each with its bodies and its answers: OpenAI's, Anthropic's, Ollama's, llama-server's."""
