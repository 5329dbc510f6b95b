"""An HTTP server with OpenAI's endpoints, for any number of targets behind one drafter."""
