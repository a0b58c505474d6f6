"""Clocks of different boots related by what passed between them: intervals, never guesses.

Every message was received after it was sent. In both directions that bounds the difference of two clocks from above and
from below (Mills 1991; the hulls: Moon, Skelly and Towsley 1999). Processes of one boot share a clock and are aligned
exactly in SQL; what is here begins where boots differ.

    messages -> strip (one window of one pair) -> pieces (a pair over time, jumps) -> relation (all clocks) -> correct
"""
