"""`finetune login`: opens MLflow's pages in a browser."""

from service.cli.terminal import local_key, output
from service.cli.terminal.client import ClientSettings
from service.cli.terminal.exit_codes import UsageError
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
