"""What can be said of a drafter and a target before they are loaded: whether they work together, and what it is worth.

`report.inspect_pair` answers; a folder that holds a tokenizer alone is enough for either of them.
"""
