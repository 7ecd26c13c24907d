"""The bodies that the API answers with; requests are service.contract.spec."""
