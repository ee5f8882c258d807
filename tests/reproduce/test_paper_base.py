from __future__ import annotations

import pytest

from engram.errors import BadArgument
from engram.reproduce import find_table, plan
from engram.reproduce.papers import rwalk_paper
from engram.reproduce.papers.cgl_paper import EMBEDDED, NTU, PAPER, UCLA, make_grid, recipe
from engram.reproduce.papers.paper_base import assign_settings, list_changes
from tests.refusals import refuses

STORED = "ucla.data_options.held=stored"


def test_dots_lead_into_the_options_of_a_data_set():
    preset = assign_settings(PAPER, [STORED])
    turned = {"augment": "train"}
    assert recipe(preset, UCLA, "REPLAY").stream["data_options"] == {"held": "stored", **turned}
    assert recipe(preset, UCLA, "REPLAY").key != recipe(PAPER, UCLA, "REPLAY").key
    assert recipe(preset, NTU, "REPLAY").key == recipe(PAPER, NTU, "REPLAY").key
    assert PAPER.ucla.data_options == {"held": "together"}
    assert assign_settings(EMBEDDED, ["ucla.data_options.frames=4"]).ucla.data_options == {
        "per_class": 20, "frames": 4,
    }  # fmt: skip


def test_search_of_table_3_keeps_the_options_of_the_data_set():
    for made in make_grid(assign_settings(PAPER, [STORED]), UCLA, "REPLAY").values():
        options = {"held": "stored", "augment": "train", "split": "tuning"}
        assert made.stream["data_options"] == options


def test_real_rows_follow_the_choice(engram_data):
    made = find_table("cgl/2", assignments=[STORED]).recipes[0]
    data = made.data(str(engram_data))
    assert data.attributes["view"][data.test].unique().tolist() == [3]


def test_options_have_no_fields_of_their_own():
    with refuses("preset.ucla.data_options.held"):
        assign_settings(PAPER, [STORED, "ucla.data_options.held.x=1"])


def test_a_data_set_can_be_left_out():
    figure = find_table("rwalk/fig4", assignments=["cifar=null"]).figures[0]
    assert {made.stream["data"] for made in figure.recipes} == {"mnist"}
    with pytest.raises(BadArgument, match=r"preset\.cifar: expected null, to leave it out"):
        find_table("rwalk/fig4", assignments=["cifar=none"])
    table = find_table("rwalk/1", assignments=["cifar=null"])
    assert {cell["dataset"] for cell in table.cells} == {"MNIST"}
    assert not any(table.entry(cell).missing for cell in table.cells)


@pytest.mark.parametrize(
    ("name", "assignment", "complaint"),
    [
        ("rwalk/1", "rwalk.alpha=2", r"alpha: .*\[0, 1\].*with rwalk.alpha=2"),
        ("rwalk/1", "rwalk.alfa=0.5", "unknown name 'alfa'"),
        ("rwalk/1", "mnist.every=0", "every: "),
        ("rwalk/1", "policy=foo", "policy: unknown name 'foo'"),
        ("rwalk/1", "scope_single=foo", "scope_single: unknown name 'foo'"),
        ("rwalk/1", "seeds=0", "seeds: "),
        ("rwalk/1", "mnist.epochs=0", "epochs: "),
        ("rwalk/1", "mnist.lr=0", "lr: "),
        ("rwalk/1", "mnist.classes=8", "classes_per_task: "),
        ("rwalk/1", "mnist.model=mpl", "did you mean 'mlp'"),
        ("rwalk/1", "mnist.data=digts", "did you mean 'digits'"),
        ("rwalk/fig4", "mnist.samples=[5, 0]", "samples: "),
        ("rwalk/2", "epochs_20=0", "epochs_20: "),
        ("cgl/2", "epochs=0", "epochs: "),
        ("cgl/2", "mas.importance=foo", "importance: unknown name 'foo'.*with mas.importance=foo"),
        ("cgl/2", "gem_scope=foo", "gem_scope: unknown name 'foo'"),
        ("cgl/2", "gcn.width=0", "width: .*with gcn.width=0"),
        ("cgl/2", "ucla.data_options.frames=0", "frames: "),
        ("cgl/1", "ucla.data_options.fraes=9", "did you mean 'frames'"),
    ],
)
def test_mistakes_are_raised_before_anything_trains(name, assignment, complaint):
    # also where the row in question was not asked for
    some = "method=Vanilla" if name == "rwalk/1" else ""
    with pytest.raises(BadArgument, match=complaint):
        plan(find_table(name, embedded=True, assignments=[assignment]), cells=some, measure=False)


def test_absent_data_is_no_mistake_of_the_settings(monkeypatch, tmp_path):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    table = find_table("cgl/1", assignments=[STORED])
    for root in (None, tmp_path):
        made = plan(table, root, measure=False)
        assert all("data: " in entry.missing for entry in made.entries)
    with refuses("root"):
        plan(table, tmp_path / "nowhere", measure=False)


def test_changes_do_not_depend_on_how_they_were_written():
    paper = rwalk_paper.PAPER
    one = assign_settings(paper, ["seeds=3", "rwalk.eps=0.01", "mnist.samples=[5]"])
    whole = "rwalk={eps: 1.0e-2, alpha_on: running}"
    two = assign_settings(paper, ["seeds=4", "mnist.samples=[5]", whole, "seeds=3"])
    assert list_changes(paper, one) == list_changes(paper, two) == {
        "mnist.samples": "[5]", "seeds": "3", "rwalk.eps": "0.01",
    }  # fmt: skip
    assert list_changes(paper, assign_settings(paper, ["seeds=5", "cifar.epochs=50"])) == {}
    assert list_changes(paper, assign_settings(paper, ["ewc={}"])) == {
        "ewc.normalize": "default", "ewc.alpha_on": "default",
    }  # fmt: skip
    assert find_table("rwalk/1", embedded=True).settings == {}


# -- presets and reasons ---------------------------------------------------------------------------
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("name", ["rwalk/1", "cgl/2", "confer/27", "iirc/C.1", "cnd/1"])
def test_what_a_paper_prints_is_a_preset_of_every_paper(name, embedded):
    ours = find_table(name, embedded=embedded)
    printed = find_table(name, embedded=embedded, preset="printed")
    assert printed.settings
    assert not ours.settings
    first, second = (
        [table.entry(cell).recipes[0] for cell in table.cells[::9] if table.entry(cell).recipes]
        for table in (ours, printed)
    )
    assert first
    assert first != second


def test_settings_change_the_printed_preset():
    table = find_table("rwalk/1", preset="printed", assignments=["ewc.normalize=true", "seeds=2"])
    assert table.preset.ewc == {"normalize": True, "alpha_on": "batch"}
    assert table.preset.seeds == 2
    with refuses("preset"):
        find_table("rwalk/1", preset="paper")


def test_what_holds_for_every_cell_is_said_once():
    made = plan(find_table("rwalk/1", embedded=True), cells="method=Vanilla*", measure=False)
    assert {entry.reasons[0] for entry in made.entries} == {"other data"}
    assert not any("epochs unstated" in entry.reasons for entry in made.entries)
    assert sum(note.startswith("all cells: epochs unstated: ") for note in made.notes) == 1
    table = find_table("rwalk/1")
    known = {cell["method"]: table.entry(cell).reasons[1:] for cell in table.cells}
    assert known["PI"] == known["PI-S"][:1] == ("PI: its xi and clamping are not given",)
    assert known["RWalk"] != known["PI"]
    assert find_table("confer/27").general_reasons == ()  # rows of plain training have none
