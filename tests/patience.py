"""How long tests wait for what has to come about."""

from __future__ import annotations

#: Seconds. What a quiet machine does in one takes some busy ones minutes; only a test that fails waits for all of them.
PATIENCE = 600
