"""No file imports itself by way of others: in `service`, in `worker` and in the client."""

import grimp
import pytest


def _circle_from(start: str, graph: grimp.ImportGraph) -> tuple[str, ...] | None:
    """The shortest chain of imports from `start` back to itself; None where there is none."""
    chains = (
        graph.find_shortest_chain(first, start)
        for first in graph.find_modules_directly_imported_by(start)
    )
    found = [(start, *chain) for chain in chains if chain]
    return min(found, key=len, default=None)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *("service", "worker", "finetune_client"),
        exclude_type_checking_imports=False,
        cache_dir=None,
    )


class TestCircles:
    def test_no_file_imports_itself_by_way_of_others(self, graph: grimp.ImportGraph) -> None:
        circles = {_circle_from(module, graph) for module in sorted(graph.modules)} - {None}
        assert circles == set(), "\n".join(" -> ".join(circle) for circle in circles if circle)

    def test_a_circle_would_be_found(self) -> None:
        graph = grimp.ImportGraph()
        for module, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
            graph.add_module(module)
            graph.add_module(imported)
            graph.add_import(importer=module, imported=imported)
        assert _circle_from("a", graph) == ("a", "b", "c", "a")
        assert _circle_from("d", graph) is None
