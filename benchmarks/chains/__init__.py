"""Jobs that depend on each other: how fast they are submitted, and how they follow each other."""
