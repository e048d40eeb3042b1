"""Which module may import which, and what no module may do: read from the source, run nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOLVER_PACKAGES = ("highspy", "ortools", "pulp")
SOLVER_FREE = (
    *("specs", "costs", "problems", "configuration", "spaces", "instances", "plan"),
    *("schedules", "schedule_bounds", "simulate", "bounds", "baselines"),
    *("certificate", "verify", "export", "rules", "lagrangian"),
)
"""Parts of the package that must give the same answer whatever solver is installed."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: the module, whether inside a function, whether for types only."""

    module: str
    inside_function: bool
    typing_only: bool


def source_files() -> dict[str, Path]:
    """Every module of the package and the formulations, by dotted name."""
    found = {}
    for top in ("ilp_parallel", "formulations"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = source_files()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """All imports of a module; ``from package import submodule`` names the submodule."""
    found: list[Import] = []

    def visit(node: ast.AST, inside: bool, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            names: list[str] = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                names = [absolute(module, child, alias.name) for alias in child.names]
            found.extend(Import(name, inside, typing_only) for name in names)
            if isinstance(child, ast.If) and is_type_checking(child.test):
                for statement in child.body:
                    visit(ast.Module([statement], []), inside, True)
                for statement in child.orelse:
                    visit(ast.Module([statement], []), inside, typing_only)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                visit(child, inside or function, typing_only)

    visit(tree(module), False, False)
    return tuple(found)


def is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def absolute(module: str, node: ast.ImportFrom, name: str) -> str:
    """Dotted name of what an import brings in."""
    assert node.level == 0, f"{module}: relative import"
    whole = f"{node.module}.{name}"
    return whole if whole in FILES else str(node.module)


def is_within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def is_ours(module: str) -> bool:
    return is_within(module, "ilp_parallel", "formulations")


@cache
def reached(module: str) -> frozenset[str]:
    """Modules that running any code of a module may import, itself included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in FILES:
            waiting += [found.module for found in imports(current) if not found.typing_only]
            waiting += [current.rpartition(".")[0]] if "." in current else []
    return frozenset(seen)


def solver_free_modules() -> list[str]:
    """Modules in the parts named above, ``verify_something`` belonging to ``verify``."""
    return [
        module
        for module in FILES
        if is_within(module, "ilp_parallel") and module.count(".")
        for name in [module.split(".")[1]]
        if name in SOLVER_FREE or name.startswith("verify")
    ]


def test_the_checks_below_see_the_source() -> None:
    assert "ilp_parallel.problems.pipeline" in solver_free_modules()
    assert "ilp_parallel.problems.check" in reached("ilp_parallel.problems.pipeline")
    assert {found.module for found in imports("ilp_parallel.program")} >= {"numpy", "dataclasses"}


@pytest.mark.parametrize("module", [m for m in FILES if is_within(m, "formulations")])
def test_formulations_import_problems_program_and_errors_only(module: str) -> None:
    allowed = ("formulations", *(f"ilp_parallel.{m}" for m in ("problems", "program", "errors")))
    ours = {found.module for found in imports(module) if is_ours(found.module)}
    assert {name for name in ours if not is_within(name, *allowed)} == set()


@pytest.mark.parametrize("module", [m for m in FILES if is_within(m, "ilp_parallel")])
def test_few_modules_import_formulations(module: str) -> None:
    uses = any(is_within(found.module, "formulations") for found in imports(module))
    part = module.split(".")[1] if "." in module else ""
    assert not uses or part.startswith("planner") or part in ("programs", "cli")


@pytest.mark.parametrize("module", solver_free_modules())
def test_independent_checks_reach_no_solver_and_no_formulation(module: str) -> None:
    forbidden = ("formulations", "ilp_parallel.solvers", *SOLVER_PACKAGES)
    assert {name for name in reached(module) if is_within(name, *forbidden)} == set()


def test_importing_independent_checks_loads_no_solver_and_no_formulation() -> None:
    """The same at run time, where an import by computed name would show."""
    modules = solver_free_modules()
    lines = [*(f"import {module}" for module in modules), "import sys", r"print(*sys.modules)"]
    run = [sys.executable, "-c", "; ".join(lines)]
    done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert loaded >= set(modules)
    forbidden = ("formulations", "ilp_parallel.solvers", *SOLVER_PACKAGES)
    assert {name for name in loaded if is_within(name, *forbidden)} == set()


@pytest.mark.parametrize("module", list(FILES))
def test_solver_packages_are_imported_late_and_by_adapters_only(module: str) -> None:
    uses = [found for found in imports(module) if is_within(found.module, *SOLVER_PACKAGES)]
    assert all(found.inside_function or found.typing_only for found in uses)
    assert not uses or is_within(module, "ilp_parallel.solvers")


def called_names(module: str) -> set[str]:
    """Names of everything a module calls, dotted where an attribute of a plain name."""
    names = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                names.add(f"{node.func.value.id}.{node.func.attr}")
    return names


@pytest.mark.parametrize("module", list(FILES))
def test_nothing_unsafe_is_called_and_only_the_command_line_prints(module: str) -> None:
    unsafe = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}
    assert called_names(module) & unsafe == set()
    modules = {found.module for found in imports(module)}
    assert modules & {"pickle", "marshal", "shelve", "dill"} == set()
    part = module.split(".")[1] if "." in module else ""
    assert "print" not in called_names(module) or part.startswith("cli")


@pytest.mark.parametrize("module", list(FILES))
def test_no_file_is_long(module: str) -> None:
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= 450


def test_datasets_is_no_package_of_its_own() -> None:
    assert not (ROOT / "datasets" / "__init__.py").exists()


def classes_with(package: str, *methods: str) -> set[tuple[str, str]]:
    """Module and name of the classes that define all these methods, protocols left out."""
    return {
        (module, node.name)
        for module in FILES
        if is_within(module, package)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
        and not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
        and {n.name for n in node.body if isinstance(n, ast.FunctionDef)} >= set(methods)
    }


def test_every_formulation_is_registered() -> None:
    from formulations import PIPELINE, PIPELINE_CHOICE

    all_listed = [*PIPELINE.values(), *PIPELINE_CHOICE.values()]
    registered = {(type(f).__module__, type(f).__name__) for f in all_listed}
    written = classes_with("formulations.pipeline", "refuses", "build", "decode")
    assert registered == written
    assert {formulation.name: formulation for formulation in PIPELINE.values()} == PIPELINE


def test_every_solver_is_registered() -> None:
    from ilp_parallel.solvers.registry import SOLVERS

    written = classes_with("ilp_parallel.solvers", "__call__", "relaxation")
    assert set(SOLVERS.values()) == written
