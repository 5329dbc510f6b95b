"""CUDA graphs of models that run through `transformers`: imported only where `graphs` is on."""
