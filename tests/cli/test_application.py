"""The command itself: its version, help and completion, and packages that are missing or broken."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

import gpvi
from gpvi import cli


def call(*words):
    return CliRunner().invoke(cli.load_app(), list(map(str, words)))


def test_version():
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"gpvi {gpvi.__version__}\n")


def test_no_command_is_answered_with_help_alone():
    result = call()
    assert "Commands" in result.output
    assert "gpvi: " not in result.output


def test_completion_is_installed_for_no_shell_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = call("--install-completion", "nosuchshell")
    assert result.exit_code == 2
    assert "followed by 'nosuchshell', but takes no argument" in result.stderr
    assert not any(tmp_path.iterdir())


def test_importing_the_library_loads_no_screen_and_no_plots():
    code = "import sys, gpvi; print([m for m in ('typer', 'rich', 'matplotlib', 'gpvi.cli') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def without(package: str, code: str) -> subprocess.CompletedProcess:
    """Run Python in a process in which a package is not installed."""
    program = f"import sys; sys.modules[{package!r}] = None; {code}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_the_command_names_it(package):
    done = without(package, "sys.argv = ['gpvi', 'fit', 'x.py']; from gpvi.cli import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gpvi: the command line needs {package}, which is not installed")
    assert "pip install 'gpvi[cli]'" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["report x", "demo", "bench"])
def test_without_matplotlib_a_command_that_draws_names_the_extra(command):
    words = ["gpvi", *command.split()]
    done = without("matplotlib", f"sys.argv = {words}; from gpvi.cli import main; main()")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs matplotlib, which is not installed: pip install 'gpvi[plots]'" in done.stderr


def test_without_rich_progress_is_a_line_of_text():
    done = without(
        "rich",
        "import jax, gpvi; target = gpvi.Target(lambda x: -x @ x, dim=2); "
        "gpvi.fit(target, gpvi.SVGD(particles=4), key=jax.random.key(0), steps=3, init=None)",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("SVGD: done: 3 steps (")


def test_a_package_whose_commands_are_broken_leaves_the_others(monkeypatch, tmp_path):
    """It is named in one line on standard error."""
    (tmp_path / "broken_commands.py").write_text("raise RuntimeError('no\\nluck')")
    monkeypatch.syspath_prepend(tmp_path)
    installed = [
        EntryPoint("absent", "no_such_package.commands", cli.GROUP),
        EntryPoint("broken", "broken_commands", cli.GROUP),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: installed)
    result = call("fit", "--help")
    assert result.exit_code == 0 and "FILE.py" in result.stdout


def test_what_is_wrong_with_a_package_is_said_once(monkeypatch, capsys):
    installed = [EntryPoint("absent", "no_such_package.commands", cli.GROUP)]
    monkeypatch.setattr(cli, "entry_points", lambda group: installed)
    cli.load_app()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "gpvi: the commands of no_such_package.commands are missing: ModuleNotFoundError: "
        "No module named 'no_such_package'.\n"
    )


def test_a_package_adds_a_command(monkeypatch, tmp_path):
    (tmp_path / "more_commands.py").write_text(
        "from gpvi.cli.application import app\n@app.command()\ndef greet(): print('good day')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    installed = [EntryPoint("more", "more_commands", cli.GROUP)]
    monkeypatch.setattr(cli, "entry_points", lambda group: installed)
    app = cli.load_app()
    try:
        assert CliRunner().invoke(app, ["greet"]).stdout == "good day\n"
    finally:
        app.registered_commands.pop()
