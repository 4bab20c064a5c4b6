"""`ksi plugins new` writes a plugin that reads well, is valid Python and destroys nothing."""

import ast
import json
from pathlib import Path

import pytest

from tests.client.conftest import Ksi


def test_a_new_plugin_is_a_folder_with_a_handler_and_a_test(ksi: Ksi, var: Path) -> None:
    done = ksi("plugins", "new", "rain_gauge")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["plugins/rain_gauge/__init__.py", "plugins/rain_gauge/test_rain_gauge.py"]
    assert "pytest plugins/rain_gauge/test_rain_gauge.py" in done.stderr
    plugin, test = (Path(line).read_text() for line in done.stdout.splitlines())
    for text in (plugin, test):
        assert ast.get_docstring(ast.parse(text))
        assert "__" not in text.replace("__file__", "")
    assert 'Plugin("rain_gauge")' in plugin
    assert '"rain_gauge:greet"' in test


@pytest.mark.usefixtures("var")
def test_the_folder_can_be_chosen_and_json_names_the_files(ksi: Ksi, tmp_path: Path) -> None:
    done = ksi("plugins", "new", "weather", "--dir", str(tmp_path / "mine"), "--json")
    files = json.loads(done.stdout)["files"]
    assert files[0] == str(tmp_path / "mine" / "weather" / "__init__.py")
    assert all(Path(path).is_file() for path in files)


@pytest.mark.usefixtures("var")
def test_an_existing_folder_is_a_conflict_and_stays_as_it_is(ksi: Ksi) -> None:
    Path("plugins/weather").mkdir(parents=True)
    done = ksi("plugins", "new", "weather")
    assert done.returncode == 7
    assert "already exists" in done.stderr
    assert list(Path("plugins/weather").iterdir()) == []
