"""The papers: one preset of open choices each, and the tables and figures made with it."""
