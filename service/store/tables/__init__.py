"""The rows, one file a resource. Importing one makes all of them known to `Base.metadata`."""

from service.store.tables import files as files
from service.store.tables import interactive as interactive
from service.store.tables import jobs as jobs
from service.store.tables import projects as projects
from service.store.tables import searches as searches
from service.store.tables import teams as teams
from service.store.tables import tracking as tracking
from service.store.tables import uploads as uploads
from service.store.tables import webhooks as webhooks
from service.store.tables import workers as workers
