from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from engram.cli import record_commands, reproduce_command
from engram.cli.console import CommandGroup
from engram.experiments.sweep import sweep
from engram.reproduce.papers import PAPER_NAMES
from engram.reproduce.shipped_results import shipped_findings

app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)
app.command("reproduce")(reproduce_command.reproduce)
app.command("diff")(record_commands.diff)

QUICK = ["--embedded", "--set", "mnist.epochs=1", "--set", "seeds=1", "--device", "cpu"]
SOME = ["--cells", "setting=single-head,method=Vanilla,metric=F|A*"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*words):
    return CliRunner().invoke(app, list(words))


def test_lists_tables():
    done = call("reproduce")
    assert done.exit_code == 0
    assert "rwalk/1" in done.stdout


def test_runs_prints_and_saves(tmp_path):
    done = call("reproduce", "rwalk/1", *QUICK, *SOME, "--save", "out/table.tex")
    assert done.exit_code == 0, done.output
    assert "not comparable" in done.stdout
    assert r"\begin{tabular}" in (tmp_path / "out" / "table.tex").read_text()
    folder = tmp_path / "runs" / "reproduce" / "rwalk-1-embedded"
    assert len(pd.read_csv(folder / "reproduction.csv")) == 2
    again = call("reproduce", "rwalk/1", *QUICK, *SOME, "--format", "csv")
    assert "1 run, 1 of them already finished" in again.stderr
    assert again.stdout.splitlines()[0].startswith("paper,table,cell")
    assert "nothing is recorded in" in call("reproduce", "rwalk").stderr
    counts = call("reproduce", "rwalk", "--embedded", "--format", "csv").stdout.splitlines()
    assert counts[-1].endswith(",-,no,-,-,-,-,-")
    assert (
        counts[0] == "table,what,shipped,cells,made,agree,differ,undecided,not comparable,not run"
    )
    assert counts[1].endswith(",78,2,0,0,0,2,76")
    assert '"78 made, 28 agree",78,2,' in counts[1]  # those of the package stand beside
    assert (
        call("reproduce", "rwalk", "--format", "csv")
        .stdout.splitlines()[1]
        .endswith(",78,0,0,0,0,0,78")
    )


def test_saved_tables_grow(tmp_path):
    some = ["--format", "csv", "--save", "out/all.csv"]
    first = call("reproduce", "cgl/5", "--cells", "method=EWC", *some)
    assert first.exit_code == 0, first.output
    before = (tmp_path / "out" / "all.csv").read_text()
    assert before == first.stdout
    call("reproduce", "cgl/5", "--cells", "method=REPLAY", *some)
    after = (tmp_path / "out" / "all.csv").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == len(before.splitlines()) + 3
    (tmp_path / "mine.csv").write_text("a,b\n")
    refused = call("reproduce", "cgl/5", "--save", "mine.csv")
    assert refused.exit_code == 2
    assert (tmp_path / "mine.csv").read_text() == "a,b\n"


def test_changes_of_the_preset_are_shown():
    done = call("reproduce", "rwalk/1", *QUICK, *SOME, "--format", "csv", "--budget", "0s")
    assert done.stdout.splitlines()[1].endswith(",mnist.epochs=1; seeds=1")
    plain = call("reproduce", "rwalk/1", "--embedded", *SOME, "--budget", "0s", "--format", "csv")
    assert plain.stdout.splitlines()[1].endswith("no finished run,")


def test_dry_run_trains_nothing(tmp_path):
    done = call("reproduce", "rwalk/1", *QUICK, *SOME, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "in all" in done.stderr
    assert "timing a few steps, group 1 of 1: Vanilla (digits, both heads)" in done.stderr
    cells, costs = done.stdout.split("runs that train together")
    assert "Vanilla (digits, both heads)" in costs
    lines = cells.splitlines()
    assert lines[0].split() == ["cell", "metric", "printed", "can", "be", "made", "reason"]
    wanted = "digits single-head Vanilla lambda=0 A(%) 38 yes other data"
    assert " ".join(lines[1].split()) == wanted
    assert len(lines) == 3
    assert not (tmp_path / "runs").exists()


def test_dry_run_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    done = call("reproduce", "rwalk/1", "--dry-run", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "0 of 78 cells" in done.stderr
    assert "39 cells: data: mnist is not part of the package" in done.stderr
    assert "nothing would be trained" in done.stderr
    assert "runs that train together" not in done.stdout
    plain = call("reproduce", "rwalk/2", "--dry-run", "--device", "cpu", "--format", "csv")
    rows = plain.stdout.splitlines()
    assert rows[0] == "cell,metric,printed,shipped,can be made,reason"
    assert rows[2].endswith(",A(%),65.4,,no,quoted by the paper from the authors of GEM")
    *names, shipped, here = rows[3].split(",")[:5]
    assert names == ["CIFAR-100 multi-head RWalk total_samples=5000", "A(%)", "70.1"]
    assert (shipped.split()[1], here) == ("differs", "no")
    assert "note: 1 shipped number made with" in plain.stderr


def test_figures_are_counted_as_figures():
    quick = [*QUICK, "--set", "mnist.samples=[5]", "--budget", "0s"]
    done = call("reproduce", "rwalk/fig4", *quick)
    assert "1 of 1 figure can be reproduced here, from 4 runs" in done.stderr, done.output
    assert "cells" not in done.stderr
    some = call("reproduce", "rwalk/fig4", *quick, "--cells", "method=EWC-S|PI-S")
    assert "1 of 1 figure can be reproduced here, from 2 runs" in some.stderr, some.output
    other = call("reproduce", "rwalk/fig6", *quick)
    assert "note: digits in place of CIFAR-100" in other.stderr


def test_budget_of_nothing_says_how_to_go_on():
    done = call("reproduce", "rwalk/1", *QUICK, *SOME, "--budget", "0s")
    assert done.exit_code == 0, done.output
    assert "1 run is unfinished" in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["reproduce", "rwalk/1", "--budget", "soon"], "budget: expected a duration"),
        (["reproduce", "rwalk/1", "--format", "pdf"], "--format"),
        (["reproduce", "rwalk/1", "--save", "x.pdf"], "--save"),
        (
            ["reproduce", "rwalk/1", "--save", "/dev/null/x.csv"],
            "/dev/null: is a file, not a folder",
        ),
        (["reproduce", "rwalk/1", "--dry-run", "--workers", "-1"], "--workers: expected a whole"),
        (["reproduce", "rwalk/1", "--dry-run", "--group-size", "-2"], "--group-size: expected"),
        (["reproduce", "rwalk/1", "--cells", "metod=F"], "did you mean 'method'"),
        (["reproduce", "rwalk/fig2", "--cells", "method=EWK"], "did you mean 'EWC'"),
        (["reproduce", "iirc/fig3.3", "--cells", "method=ER"], "iirc/fig3.3 is drawn as a whole"),
        (["reproduce", "rwalk/fig6", "--set", "cifar=null"], "rwalk/fig6: expected CIFAR-100"),
        (["reproduce", "walk/1"], "did you mean 'rwalk'"),
        (["reproduce", "walk"], "did you mean 'rwalk'"),
        (["reproduce", "rwalk", "--dry-run"], "table: expected rwalk/TABLE"),
        (["reproduce", "rwalk", "--out", "x"], "--out: expected a folder with run directories"),
        (["reproduce", "rwalk/1", "--dry-run", "--save", "x.csv"], "--save: expected no value"),
        (["reproduce", "rwalk/1", "--on", "skeletons"], "expected grey images or colour images"),
        (["reproduce", "cgl/2", "--on", "digits"], "got 'digits: grey images'"),
        (["reproduce", "cgl/5", "--on", "digits"], "cgl/5 needs no data"),
        (["reproduce", "rwalk/1", "--on", "faces"], "got 'faces with 8 classes'"),
        (["reproduce", "rwalk/1", "--on", "digts"], "did you mean 'digits'"),
        (["reproduce", "rwalk/1", "--set", "epoch=3"], "preset: unknown name"),
        (["diff", "nowhere", "rwalk/1"], "run directory"),
    ],
)
def test_complaints_are_one_line(words, complaint):
    done = call(*words)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.output


def test_diff_of_a_run_and_a_preset():
    sweep([{"stream": {"data": "blobs"}, "method": "Finetune"}], out="mine")
    done = call("diff", "mine", "rwalk/1")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["stream.data", "blobs", "mnist"]
    assert "make numbers incomparable" in done.stderr
    assert "Finetune was compared with Vanilla (MNIST, both heads)" in done.stderr
    same = call("diff", "mine", "mine")
    assert "same protocol" in same.stderr


def test_nothing_to_reproduce_is_not_success(monkeypatch, tmp_path):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    done = call("reproduce", "rwalk/1", "--device", "cpu")
    assert done.exit_code == 2
    assert done.stdout == ""
    said = done.stderr.splitlines()[-1]
    for part in ("nothing of rwalk/1 can be reproduced", "mnist is not part of the package",
                 "cifar100 is not part", "--root DIR", "ENGRAM_DATA", "--embedded"):  # fmt: skip
        assert part in said
    assert not (tmp_path / "runs").exists()
    assert call("reproduce", "rwalk/fig3", "--device", "cpu").exit_code == 2
    for option in ("--root", "--data"):  # two names of one thing
        said = call("reproduce", "rwalk/1", option, str(tmp_path), "--device", "cpu").stderr
        assert f"mnist was not found under {tmp_path}" in " ".join(said.split())


def test_papers_with_a_preset_are_offered():
    said = call("reproduce", "iirk/1").stderr
    assert f"did you mean 'iirc'? Valid: {', '.join(sorted(PAPER_NAMES))}" in said


def test_embedded_rows_are_not_called_by_the_name_of_the_papers_data():
    done = call("reproduce", "rwalk/1", *QUICK, *SOME, "--format", "csv")
    cells = [line.split(",")[2] for line in done.stdout.splitlines()[1:]]
    assert cells
    assert all(cell.startswith("digits ") and "MNIST" not in cell for cell in cells)
    assert "made on digits, not on the paper's data" in done.stderr


def test_on_other_data_of_the_same_kind(tmp_path):
    """The protocol of MNIST, whose numbers stand beside; CIFAR-100 is of another kind."""
    quick = ["--set", "mnist.epochs=1", "--set", "seeds=1", "--device", "cpu", "--on", "digits"]
    done = call("reproduce", "rwalk/1", *quick, *SOME)
    assert done.exit_code == 0, done.output
    assert "2 of 2 cells can be reproduced here" in done.stderr
    assert "note: made on digits" in done.stderr
    found = pd.read_csv(tmp_path / "runs" / "reproduce" / "rwalk-1-on-digits" / "reproduction.csv")
    assert set(found["cell"]) == {"digits single-head Vanilla lambda=0"}
    assert found["printed"].tolist() == [38.0, 0.62]
    assert set(found["verdict"]) == {"not comparable"}
    assert set(found["reason"]) == {"other data"}
    counts = call("reproduce", "rwalk", "--on", "digits", "--format", "csv").stdout.splitlines()
    assert counts[1].endswith(",78,2,0,0,0,2,76")


def test_findings_are_counted_beside_those_that_ship(tmp_path, capsys):
    claim = {"finding": "AGEM and finetune last", "row": "", "printed_holds": "yes"}
    lines = [{**claim, "holds": holds} for holds in ("yes", "no", "undecided", "yes")]
    file = tmp_path / "findings.csv"
    pd.DataFrame(lines).to_csv(file, index=False)
    table = SimpleNamespace(name="iirc/findings")
    made = SimpleNamespace(figures=(file,), plan=SimpleNamespace(table=table))
    reproduce_command._print_findings(made)
    *_, line = capsys.readouterr().out.splitlines()
    known = shipped_findings("iirc").set_index("finding").loc["AGEM and finetune last"]
    shown = f"{known['yes']} of {known['comparisons']}"
    assert line.split("last")[1].split() == ["4", "2", "1", "1", "0", *["4", "of", "4"],
                                             *shown.split()]  # fmt: skip
