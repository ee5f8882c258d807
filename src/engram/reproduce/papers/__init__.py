"""Papers that can be reproduced: the tables of each in one module, its preset in another."""

from __future__ import annotations

WRITTEN = ("rwalk", "cgl", "confer", "iirc", "cnd")  # modules here, whose `TABLES` are a `Paper`
