"""A few trials of the campaign; `make faults` runs all of it."""

from __future__ import annotations

from tests.faults.campaign import FAULTS, POOLS, Trial, campaign, trials

FEW = ["crash at a file", "full disk", "deleted directory", "two writers", "flipped bit",
       "swapped checkpoints"]  # fmt: skip


def test_a_few_faults_end_as_if_nothing_had_been(tmp_path):
    pools = ["together", "serial"]
    planned = [
        Trial(kind, "ER", pools[place % 2], place) for place, kind in enumerate(FEW)
    ]  # fmt: skip
    found = campaign(planned, tmp_path, seed=4, say=lambda _: None)
    assert {one.fault: one.wrong for one in found} == {kind: [] for kind in FEW}
    assert sum(one.met for one in found) >= 5


def test_the_campaign_covers_faults_methods_and_pools():
    planned = list(trials(["ER", "EWC"], list(FAULTS), list(POOLS), 6))
    assert {one.fault for one in planned} == set(FAULTS)
    assert {one.pool for one in planned} == set(POOLS)
    assert {one.method for one in planned} == {"ER", "EWC"}
    assert len({one.number for one in planned}) == len(planned)
