"""Texts as rows of token ids: tokenisers, and readers of text sets."""
