"""Confines this process to a view, with every layer that the view names."""

from worker.sandbox import landlock, namespaces
from worker.sandbox import system_calls as sys_
from worker.sandbox.view import Layer, View


def enter(view: View) -> None:
    """Must be called while this process has one thread. OSError if the kernel refuses.

    With namespaces it returns in a child; this process then waits for that one, and ends like it.
    """
    if not view.layers:
        return
    view = view.existing()
    if Layer.NAMESPACES in view.layers:
        namespaces.enter(view)
    sys_.drop_capabilities()
    if Layer.LANDLOCK in view.layers:
        landlock.restrict(view)
