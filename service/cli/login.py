"""`finetune login`: opens MLflow's pages in a browser."""

from service.cli import output
from service.cli.client import ClientSettings
from service.cli.exit_codes import UsageError
from service.cli.stack import local_key
from service.settings import Settings


def login() -> None:
    """Print a link that opens MLflow's pages in a browser: once, within an hour."""
    url = ClientSettings().base_url()
    link = local_key.login_url(Settings().home, url)
    if link is None:
        raise UsageError(
            f"no `finetune up` of this home is at {url}: open {url}/login and paste an API key"
        )
    output.print_line(link)
