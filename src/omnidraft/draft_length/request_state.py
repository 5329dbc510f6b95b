"""What a stop policy knows of the text at hand, and forgets with the next one."""

from __future__ import annotations

from dataclasses import dataclass

BEGINNING = 8  # tokens of a text: how hard these are says little of the rest


@dataclass
class Present:
    """The present text, whose prompt has so many drafter tokens, and which asks for so many target tokens."""

    prompt: int = 0
    asked: int = 0
    said: int = 0  # target tokens so far
    looked: int = 0  # how many there were when it was last looked at whether reading it pays
    first: bool = True  # whether its first round is still to come, whose pass reads the prompt
    reads: bool = True  # whether the drafter has read it, or is to read it
    brief: bool = False  # whether it may end with its beginning
    rounds: int = 0  # in which the drafter was asked
    checked: int | None = None  # of these, when it was last looked at whether drafts pay here
    pays: bool = False  # whether they did
    hoping: bool = False  # whether only by chances as they may well be: such drafts count as trials

    @property
    def opening(self) -> bool:
        """Whether it has only just begun."""
        return self.said < BEGINNING
