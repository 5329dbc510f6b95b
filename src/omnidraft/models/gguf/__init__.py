"""GGUF files as models: the header, checked whole, and the weights, as they lie or as safetensors that are kept."""
