"""Compatibility and figures of a drafter and a target before their weights are loaded; see `report.inspect_pair`."""
