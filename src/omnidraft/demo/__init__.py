"""The demonstration: chat questions answered without and with drafts."""
