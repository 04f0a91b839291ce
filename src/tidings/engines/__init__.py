"""Other policy engines behind the gate: asked the same questions as our rules, weighed with them, never trusted to answer."""
