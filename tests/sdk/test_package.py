"""The package: it is typed, has the same API in both clients, and works without OpenTelemetry."""

import inspect
import pathlib
import subprocess
import sys

import atoll
import pytest


def test_it_is_what_was_installed():
    where = pathlib.Path(atoll.__file__)
    assert "site-packages" in where.parts, where
    assert (where.parent / "py.typed").exists()
    from importlib.metadata import version

    assert version("atoll-sandbox") == atoll.__version__


@pytest.mark.parametrize("name", ["Atoll", "Sandbox", "Process", "Terminal", "Pager"])
def test_both_halves_have_the_same_names(name):
    def public(cls):
        return {
            one.replace("aclose", "close"): str(inspect.signature(getattr(cls, one))).replace("Async", "")
            for one in dir(cls)
            if not one.startswith("_") and callable(getattr(cls, one))
        }

    one, other = public(getattr(atoll, name)), public(getattr(atoll, "Async" + name))
    assert set(one) == set(other)
    for method in one:
        assert one[method].split(" -> ")[0] == other[method].split(" -> ")[0]


def test_eleven_error_classes():
    classes = [one for one in vars(atoll.errors).values() if inspect.isclass(one) and issubclass(one, Exception)]
    assert len(classes) == 11 and all(issubclass(one, atoll.AtollError) for one in classes)


def test_it_works_without_opentelemetry():
    hide = "import sys; sys.modules['opentelemetry'] = None; import atoll; print(atoll.__version__)"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == atoll.__version__, done.stderr
