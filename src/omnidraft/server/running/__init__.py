"""The models at work: the thread that drives their lanes, who waits, whose memory it is, and what is measured."""
