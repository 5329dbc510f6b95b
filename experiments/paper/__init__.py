"""The tables and figures of the paper, by a recipe of models, tasks and sizes."""
