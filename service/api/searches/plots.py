"""The figures of a search, as plotly's JSON or as a page."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from service.api.faults.names import nearest
from service.api.faults.redaction import cut
from service.api.http.dependencies import SearchId
from service.api.http.principal import JobsRead
from service.api.openapi.document import problems
from service.api.schemas.searches import Figure
from service.api.searches.plot_cache import NAMES, Asked, PlotName, Plots
from service.contract.fields import patterns
from service.errors import PlotNotFoundError
from service.studies import plot_page

router = APIRouter(prefix="/v1/searches/{search_id}", tags=["searches"])

_FIGURE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The figure.",
        "content": {"text/html": {"schema": {"type": "string"}}},
    }
}
# A search that continues has another figure soon, and the key decides who may see it.
_HEADERS: Final = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}


async def _plot_name(
    name: Annotated[
        str,
        Path(description=f"One of {', '.join(f'`{each}`' for each in NAMES)}.", examples=[*NAMES]),
    ],
) -> PlotName:
    for known in NAMES:
        if known == name:
            return known
    near = nearest(name, NAMES)
    hint = f"did you mean `{near}`?" if near else f"there are {', '.join(NAMES)}"
    raise PlotNotFoundError(f"There is no plot {cut(name)!r}; {hint}")


@router.get(
    "/plots/{name}",
    response_model=Figure,
    summary="A figure of a search",
    responses={**_FIGURE, **problems(401, 404, 409, 422, 503)},
)
async def get_search_plot(
    principal: JobsRead,
    search_id: SearchId,
    name: Annotated[PlotName, Depends(_plot_name)],
    request: Request,
    format: Annotated[
        Literal["json", "html"] | None,
        Query(description="Default: `html` where `Accept` names `text/html`, else `json`."),
    ] = None,
    metric: Annotated[
        str | None,
        Query(
            max_length=200,
            pattern=patterns.NO_NUL,
            description="Of several objectives the one to show. Default: all where the figure "
            "can show them, else the first.",
        ),
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """JSON is a figure of [plotly](https://plotly.com/javascript/); HTML is a page that needs no
    other file, also when it is saved. 409 while too few trials have results, and for a figure of
    another kind of search."""
    plots: Plots = request.app.state.plots
    figure = await plots.get(Asked(principal.scope, search_id, name, metric))
    if format == "html" or (format is None and "text/html" in accept):
        page = plot_page.render(figure, f"{name} of {search_id}")
        return Response(
            page, media_type="text/html", headers={**_HEADERS, **plot_page.headers(name)}
        )
    return Response(figure, media_type="application/json", headers=_HEADERS)
