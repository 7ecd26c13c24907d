"""The bodies of the API's responses; those of its requests are in service.contract.spec.spec."""
